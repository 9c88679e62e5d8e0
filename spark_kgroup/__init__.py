"""A real Kafka consumer group member, and what it needs; imports nothing of Spark or Arrow."""
