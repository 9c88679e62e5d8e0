"""Decisions by offsets alone: the format of a checkpoint, the ranges of a batch, the start of an adopted partition.

Runs on: both. Pure, with all that it imports.
"""
