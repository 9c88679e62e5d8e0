"""The options of a query: one row for each, and the parser that reads, checks and refuses by the rows.

Runs on: driver.
"""
