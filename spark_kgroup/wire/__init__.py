"""The wire: messages and their codec, one connection, cluster metadata and look-ups."""
