"""`make bench-seats`: what stays put when executors are killed, and how warm reads are when none is."""
