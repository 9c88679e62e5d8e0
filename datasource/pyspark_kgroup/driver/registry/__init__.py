"""Which executor reads which seat: the seats' homes, and the server that executors ask.

Runs on: driver.
"""
