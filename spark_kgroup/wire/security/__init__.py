"""How a connection is secured: TLS below Kafka's protocol, SASL as its first requests."""
