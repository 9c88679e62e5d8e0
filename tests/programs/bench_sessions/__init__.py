"""The costs of many seats in one process on a real Kafka: `make bench-sessions`."""
