"""The files of Spark's checkpoint on a local disk: what they say of Kafka sources, and an offset put in place of one.

Runs on: driver, in the process of the command `kgroup checkpoint`. No Spark is needed.
"""
