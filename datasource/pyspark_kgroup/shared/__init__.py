"""What driver and executors share: what travels between them, and how.

Runs on: both.
"""
