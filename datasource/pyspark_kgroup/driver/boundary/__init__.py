"""What happens between two micro-batches: commits, hand-overs, adoption, and what the next batch reads.

Runs on: driver.
"""
