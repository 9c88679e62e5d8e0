"""What is found out once, before a query's seats join: how many they are, whose JVM this is, whose checkpoint.

Runs on: driver.
"""
