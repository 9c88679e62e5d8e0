"""The member's half of the group protocols: pure state machines (see `classic`)."""
