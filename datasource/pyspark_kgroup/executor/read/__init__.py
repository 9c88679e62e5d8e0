"""One read of offset ranges from brokers, with librdkafka or the native reader.

Runs on: executor.
"""
