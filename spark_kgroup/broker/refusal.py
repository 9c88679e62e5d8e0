"""How a part of the broker refuses a part of a request."""

from __future__ import annotations


class Refused(Exception):
    """A partition, topic or other part of a request is refused. The handler answers it with the code.

    Attributes:
        code: Kafka's error code.
        text: for people, if the answer has room for it.
    """

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
