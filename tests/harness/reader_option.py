"""Which reader the queries of a test run have: `READER=librdkafka` in the environment tests without our own one."""

import os

READER = os.environ.get("READER", "native")
