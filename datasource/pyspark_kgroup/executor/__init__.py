"""The executors' half: what a task does with its ticket, and the sidecar that fetches ahead.

Runs on: executor. The driver never imports it.
"""
