"""The costs that grow with partitions, seats and executors, and how much: `make bench-scale`."""
