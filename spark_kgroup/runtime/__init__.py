"""Real time: runs member machines over the wire, watches metadata, commits (see `session` and `group`)."""
