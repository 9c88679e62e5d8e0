"""Hostile messages, a million of them.

They go through the codec, the code that interprets answers, the member machine, and the channel, and through the reader
of Fetch (`fetch_run`) and its native decoder (`native`).

    make fuzz FRAMES=1000000 ANSWERS=1000000 SEED=7

A message may be refused with an error of the tree in `spark_kgroup.errors`, in bounded time and memory, and ends its
own connection at most. Any other effect is a finding. The same seed makes the same messages.
"""
