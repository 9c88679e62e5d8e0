"""A task in Spark's Python worker: a ticket, and the ways to its records.

Runs on: executor.
"""
