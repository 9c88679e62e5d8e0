"""Listeners that tests ask for, before a node is started with them."""

import pytest

from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.testing import SecureListener


@pytest.mark.parametrize("form", [None, "RSA PRIVATE KEY", "EC PRIVATE KEY", "ENCRYPTED PRIVATE KEY"])
def test_a_key_that_kafka_does_not_take_is_refused_with_the_way_to_one_that_it_takes(form: str | None) -> None:
    key_pem = f"-----BEGIN {form}-----\nAA==\n-----END {form}-----\n" if form else None
    with pytest.raises(EnvironmentProblem, match="openssl pkcs8 -topk8 -nocrypt"):
        SecureListener(name="SSL", certificate_pem="-----BEGIN CERTIFICATE-----", key_pem=key_pem)
