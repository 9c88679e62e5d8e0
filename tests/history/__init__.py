"""What happened to every record of a run, as a file, and a judge of it that knows only the promises.

`python -m history run/history.jsonl` prints a verdict. Nothing here imports the product: neither how a checkpoint is
written nor what a seat is plays a part, so that a mistake there cannot excuse itself.
"""
