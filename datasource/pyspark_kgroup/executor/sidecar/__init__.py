"""The process beside an executor: it fetches ahead for the seats at home there.

Runs on: executor.
"""
