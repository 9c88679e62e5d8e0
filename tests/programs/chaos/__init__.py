"""Random faults against one consumer group, and a verdict on each promise: `make chaos MINUTES=10`."""
