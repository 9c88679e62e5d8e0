"""The native reader: it fetches and decodes ordinary records, without a Python object for each record.

Decoding: `records.c` turns a Fetch answer into Arrow batches. `interface` mirrors its declarations, `library` loads it,
`codecs` decompresses with PyArrow's own codecs, and readers call `decode`. Fetching: `fetch_messages` has the bytes,
and `broker_connection` carries them, as `connection_security` and `fetch_settings` say. `fetcher` chooses the
partitions to ask each broker for, `fetched_log` knows where a partition goes on, and `read_natively` reads with both.
Data that are not ordinary are refused (`decode.FallbackToLibrdkafka`), and librdkafka reads them instead, from the
offset that this reader has come to.

Runs on: executor.
"""
