"""`make bench-tasks`: a slow operator behind the source, with as many tasks as cores."""
