"""Shared by several test layers: producing to and reading from a real Kafka, and watching a stream."""
