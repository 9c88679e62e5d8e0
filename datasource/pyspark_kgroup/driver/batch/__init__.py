"""Planning a batch read (`spark.read`). Streams use its `leaders` and `timestamps` as well.

Runs on: driver.
"""
