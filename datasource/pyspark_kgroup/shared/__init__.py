"""Shared by driver and executors: the data that travel between them, and how they travel.

Runs on: both.
"""
