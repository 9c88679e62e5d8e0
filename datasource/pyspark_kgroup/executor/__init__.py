"""The executors' half: reading the ranges of a task's ticket, and the sidecar that fetches ahead.

Runs on: executor. The driver imports `read.record_samples` alone.
"""
