"""Batch reads (`spark.read`), and the filters that a read takes over.

Runs on: driver.
"""
