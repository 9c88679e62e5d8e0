"""The driver's half: the boundary between two batches, and which executor reads which seat.

Runs on: driver. Executors never import it.
"""
