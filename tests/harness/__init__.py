"""What several test layers share: producing to and reading from a real Kafka, and watching a stream."""
