"""A small broker in this process that speaks Kafka's protocol: for development, tests and demos. No production broker.

It keeps everything in memory, on the nodes of one process, so nothing is replicated and nothing survives it. What it
serves it serves as Apache Kafka 4 does (`served`), and what it lacks is named with a reason in UNSUPPORTED.md.

The state (`cluster`, `topics`, `log`) is pure: requests and the time come in, answers go out. Only `server` has
sockets. `spark_kgroup.testing.EmbeddedBroker` puts it into a thread.
"""
