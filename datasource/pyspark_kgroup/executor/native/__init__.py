"""What a Fetch answer holds, as Arrow batches: by a decoder in C, without a Python object for each record.

`records.c` is the decoder; `interface` mirrors what it declares, `library` loads it, `codecs` decompresses with
PyArrow's own codecs, and `decode` is what a reader calls. Whatever is not ordinary is refused (`decode.Unusual`), and
read with librdkafka instead.

Runs on: executor.
"""
