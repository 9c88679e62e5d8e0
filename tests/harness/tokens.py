"""A `tokenCallback` as users write it. Spark's Python processes import it: they get this folder on their path."""

import time

from pyspark_kgroup import token_callback
from spark_kgroup.testing import unsecured_token

LIFETIME_S = 3600


@token_callback
def token_for(user: str) -> tuple[str, float]:
    """A token for the user that kafka.sasl.oauthbearer.config names."""
    return unsecured_token(user, LIFETIME_S), time.time() + LIFETIME_S
