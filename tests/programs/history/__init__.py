"""The history of every record of a run, as a file, and a judge of it that knows only the promises.

`python -m history run/history.jsonl` prints a verdict. No module here imports the product: checkpoints and seats play
no part, so that a mistake there cannot excuse itself.
"""
