"""Random faults against one consumer group, and a verdict on what was promised: `make chaos MINUTES=10`."""
