"""A reader of our own: it fetches and decodes what is ordinary, without a Python object for each record.

What a Fetch answer holds becomes Arrow batches: `records.c` is the decoder; `interface` mirrors what it declares,
`library` loads it, `codecs` decompresses with PyArrow's own codecs, and `decode` is what a reader calls. What is asked:
`fetch_messages` has the bytes, `broker_connection` carries them, as `connection_security` and `fetch_settings` say;
`fetcher` knows what to ask of which broker, `fetched_log` where a partition goes on, and `read_ranges` reads with them.
Whatever is not ordinary is refused (`decode.Unusual`), and read with librdkafka instead, from where this reader has
come to.

Runs on: executor.
"""
