"""Every error this library raises on purpose. Any other exception is a bug in it.

    KgroupError
    ├── OptionError                 the caller's: an option is missing, unknown or contradictory
    ├── EnvironmentProblem          this machine's: no Java, no jars, no port, a child that died
    ├── WireError                   between us and a broker
    │   ├── ConnectionFailed        retriable: could not connect, or connect in time
    │   ├── Disconnected            retriable: the connection ended while we waited
    │   ├── RequestTimedOut         retriable: no answer in time
    │   ├── Orphaned                the process that we work for has ended: no request is sent any more
    │   ├── ProtocolViolation       the peer's: bytes that are not Kafka, or that we cannot decode
    │   ├── UnsupportedApi          the broker is too old (or too new) for an API we need
    │   ├── AuthenticationFailed    TLS or SASL: the broker refused us, we refused it, or there was no token
    │   └── BrokerError             a broker answered with an error code
    ├── GroupError                  between us and the group
    │   ├── FencedInstanceId        fatal: another process took the seat
    │   ├── GroupRejected           fatal: the group rejects this member (protocol, session timeout, permission)
    │   ├── AssignorError           fatal: a custom assignor raised, or broke its contract
    │   └── GroupUnsettled          the group did not come to rest within the bound we give it
    └── UnknownTopic                the caller's: a subscribed topic does not exist

`IllegalTransition` is such a bug: a state machine met an event that its table does not have.

A package that builds on this library adds errors of its own below `KgroupError`. A message says whose fault it is and
how to go on. A setting stands in it by the name that Kafka or librdkafka gives it, in backquotes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self, TypeVar

from spark_kgroup.model import ErrorCode


class KgroupError(Exception):
    """Base of all errors raised on purpose.

    An error keeps the text with which it was made: another caller may hold it, or a log line may have shown it.
    """

    def reworded(self, text: str) -> Self:
        """A new error of the same kind, with all that this one carries but its text. This one is its cause."""
        other = _like(self, text)
        other.__cause__ = self
        return other


_Error = TypeVar("_Error", bound=KgroupError)


def _like(error: _Error, *args: object) -> _Error:
    """An error of the same kind, with these arguments and the same attributes. Its `__init__` would make a new text."""
    other = type(error).__new__(type(error), *args)
    other.__dict__.update(error.__dict__)
    return other


class OptionError(KgroupError, ValueError):
    """An option is missing, unknown, malformed or contradicts another. The message names it and the fix."""


class EnvironmentProblem(KgroupError):
    """This machine lacks a part (Java, a jar, a free port), or a child process died."""


class WireError(KgroupError):
    """An error between this process and a broker."""

    retriable: bool = False

    def again(self) -> Self:
        """The same error for one more caller: a raised exception carries its caller's traceback, so none is shared."""
        return _like(self, *self.args)


class ConnectionFailed(WireError):
    """No TCP connection to the broker, or none in time."""

    retriable = True


class Disconnected(WireError):
    """The connection ended while a response was awaited: the request may or may not have been carried out."""

    retriable = True


class RequestTimedOut(WireError):
    """No response in time: the request may or may not have been carried out."""

    retriable = True


class Orphaned(WireError):
    """The process that we work for has ended. No request is sent in its name: another may have taken its place."""


class ProtocolViolation(WireError):
    """The peer sent bytes that are not Kafka's protocol, or that this version cannot decode.

    Retriable if the peer speaks Kafka and one answer of it makes no sense.
    """

    def __init__(self, message: str, *, retriable: bool = False) -> None:
        self.retriable = retriable
        super().__init__(message)


class UnsupportedApi(WireError):
    """The broker does not speak the version of an API that is needed here."""


class AuthenticationFailed(WireError):
    """The broker refused our identity, we refused the broker's, or there was no token to log in with.

    Retriable only while it may pass: the token endpoint is away, or a broker that knew us before no longer does.
    """

    def __init__(self, message: str, *, retriable: bool = False) -> None:
        self.retriable = retriable
        super().__init__(message)


_GRANTS: Final[Mapping[int, str]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant READ on the topic to this user",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "grant READ on the group to this user",
}
"""Error code -> the right to grant, where we use a topic or a group. READ implies DESCRIBE (StandardAuthorizerData)."""

_GRANTS_BY_API: Final[Mapping[tuple[str, int], str]] = {
    ("ConsumerGroupDescribe", ErrorCode.TOPIC_AUTHORIZATION_FAILED): "grant DESCRIBE on the topics of all its members "
    "to this user",
    ("DescribeConfigs", ErrorCode.GROUP_AUTHORIZATION_FAILED): "grant DESCRIBE_CONFIGS on the group to this user",
    ("DescribeConfigs", ErrorCode.CLUSTER_AUTHORIZATION_FAILED): "grant DESCRIBE_CONFIGS on the cluster to this user",
}
"""(API, error code) -> the right to grant where it is another one (KafkaApis.handleConsumerGroupDescribe,
ConfigHelper.handleDescribeConfigsRequest)."""


class BrokerError(WireError):
    """A broker answered a question with an error code. Callers that ask for an action read its error in the answer.

    Attributes:
        code: Kafka's error code (int16), an `ErrorCode` where we know it.
        message: the broker's own words, if it sent any, as `printable_words` has them, or else the names asked about.
    """

    def __init__(self, api: str, code: int, message: str | None = None) -> None:
        self.api = api
        self.code = code
        self.message = message
        self.retriable = ErrorCode.may_pass(code)
        grant = _GRANTS_BY_API.get((api, code)) or _GRANTS.get(code)
        details = "".join(f": {words.rstrip('.')}" for words in (message, grant) if words)
        super().__init__(f"{api} failed with {ErrorCode.name_of(code)}{details}")


class UnknownTopic(KgroupError):
    """A subscribed topic does not exist, or this user may not see it."""


class GroupError(KgroupError):
    """An error between a member and its group."""


class FencedInstanceId(GroupError):
    """Another process joined with this instance id and took the seat (KIP-345). Fatal for this member."""

    def __init__(self, group: str, instance_id: str) -> None:
        self.group = group
        self.instance_id = instance_id
        super().__init__(self._text())

    def _text(self) -> str:
        seat = f"the seat {self.instance_id!r}" if self.instance_id else "the place of a dynamic member"
        return (
            f"Another process took {seat} in group {self.group!r} (FENCED_INSTANCE_ID), and the newest one keeps it: "
            "give each process instance ids of its own."
        )


class GroupRejected(GroupError):
    """The group refuses this member as it is. Retrying cannot help."""


class AssignorError(GroupError):
    """A custom assignor raised, or its assignment breaks its contract. The message names it and the partition."""


class GroupUnsettled(GroupError):
    """The group did not come to rest within a bound. The message names the state that was awaited."""


class IllegalTransition(Exception):
    """A state machine met an event that its table does not have: a bug of ours, which no user can mend."""

    def __init__(self, role: str, state: str, event: str) -> None:
        super().__init__(f"{role}: event {event} is not in the table for state {state}")
