"""`make bench-seats`: partitions that stay put when executors are killed, and how warm reads are when none is."""
