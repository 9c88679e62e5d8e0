"""Options that may hold secrets, in a form whose text shows none.

Runs on: both. Pure: Spark pickles a reader with its options, and error messages and logs may hold either.
"""

from __future__ import annotations

import re
from typing import Final

_SENSITIVE: Final = (
    r"password|passphrase|secret|jaas|credential|private|key\.pem|keystore\.key|oauthbearer\.config|endpoint\.url"
)


class Redacted(dict[str, str]):
    """Options or librdkafka's properties by name. Its text shows no secrets."""

    def without_secrets(self) -> dict[str, str]:
        """A copy that may be shown: each secret is `***`."""
        return {name: "***" if is_secret(name) else value for name, value in self.items()}

    def __repr__(self) -> str:
        return repr(self.without_secrets())


def is_secret(name: str) -> bool:
    """Whether an option's value must never be shown."""
    return re.search(_SENSITIVE, name.lower()) is not None
