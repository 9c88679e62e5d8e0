"""One module for each API: its versions at the head, and `answer`, a function of the cluster's state."""
