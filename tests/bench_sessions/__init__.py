"""What many seats in one process cost on a real Kafka: `make bench-sessions`."""
