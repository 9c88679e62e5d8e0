"""Finds out before a query's seats join: how many they are, whose JVM this is, which query wrote the checkpoint.

Runs on: driver.
"""
