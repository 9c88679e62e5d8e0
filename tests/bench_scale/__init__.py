"""What grows with partitions, seats and executors, and how much: `make bench-scale`."""
