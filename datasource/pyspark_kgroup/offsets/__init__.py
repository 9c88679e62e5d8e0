"""What is decided by offsets alone: what a checkpoint says, what a batch reads, where an adopted partition starts.

Runs on: both. Pure, with all that it imports.
"""
