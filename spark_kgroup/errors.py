"""Every error this library raises on purpose. Any other exception is a bug in it.

    KgroupError
    ├── OptionError                 the caller's: an option is missing, unknown or contradictory
    ├── EnvironmentProblem          this machine's: no Java, no jars, no port, a child that died
    ├── WireError                   between us and a broker
    │   ├── ConnectionFailed        retriable: could not connect, or connect in time
    │   ├── Disconnected            retriable: the connection ended while we waited
    │   ├── RequestTimedOut         retriable: no answer in time
    │   ├── Orphaned                whoever we speak for has gone: nothing more is sent
    │   ├── ProtocolViolation       the peer's: bytes that are not Kafka, or not what we can decode
    │   ├── UnsupportedApi          the broker is too old (or too new) for an API we need
    │   ├── AuthenticationFailed    TLS or SASL: the broker refused us, we refused it, or there was no token
    │   └── BrokerError             a broker answered with an error code
    ├── UnknownTopic                the caller's: a subscribed topic does not exist
    ├── DataLoss                    records we had still to read are gone
    ├── GroupError                  between us and the group
    │   ├── FencedInstanceId        fatal: another process took the seat
    │   ├── GroupRejected           fatal: the group will not have us (protocol, session timeout, permission)
    │   └── GroupUnsettled          the group did not come to rest within the bound we give it
    ├── ChannelEnded                between driver and executor, or within an executor: it ended, or was silent too long
    ├── KeyRefused                  the two ends of such a channel do not hold the same query's key
    ├── RegistryUnreachable         an executor cannot reach the stream reader on the driver
    ├── SeatRefused                 a task asks for a ticket that the stream reader does not know
    └── IllegalTransition           ours: a state machine met an event its table does not have

A message says whose fault it is and what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

from spark_kgroup.model import ErrorCode


class KgroupError(Exception):
    """Base of all errors raised on purpose."""


class OptionError(KgroupError, ValueError):
    """An option is missing, unknown, malformed or contradicts another; the message names it and the fix."""


class EnvironmentProblem(KgroupError):
    """This machine lacks something (Java, a jar, a free port), or a child process died."""


class WireError(KgroupError):
    """Something went wrong between this process and a broker."""

    retriable: bool = False

    def again(self) -> Self:
        """The same error for one more caller: a raised exception carries its caller's traceback, so none is shared."""
        again = type(self).__new__(type(self), *self.args)
        again.__dict__.update(self.__dict__)
        return again


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
    """The process that we speak for has gone, so nothing more is sent in its name: another may have taken its place."""


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
    """The broker refused who we are, we refused who it is, or there was no token to show it.

    Retriable only while it may pass: the token endpoint is away, or a broker that knew us before no longer does.
    """

    def __init__(self, message: str, *, retriable: bool = False) -> None:
        self.retriable = retriable
        super().__init__(message)


_GRANTS: Final[Mapping[int, str]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant READ on the topic to this user",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "grant READ on the group to this user",
}
"""What is missing, where we use a topic or a group; READ implies DESCRIBE (StandardAuthorizerData)."""


class BrokerError(WireError):
    """A broker answered with an error code.

    Attributes:
        code: Kafka's error code (int16); an `ErrorCode` where we know it.
        message: the broker's own words, if it sent any.
    """

    def __init__(self, api: str, code: int, message: str | None = None) -> None:
        self.api = api
        self.code = code
        self.message = message
        self.retriable = code in ErrorCode.retriable_codes()
        said = "".join(f": {words.rstrip('.')}" for words in (message, _GRANTS.get(code)) if words)
        super().__init__(f"{api} failed with {ErrorCode.name_of(code)}{said}")


class UnknownTopic(KgroupError):
    """A subscribed topic does not exist, or this user may not see it."""


class DataLoss(KgroupError):
    """Records that were still to be read are gone (retention, deletion, recreation of the topic)."""


class GroupError(KgroupError):
    """Something went wrong between a member and its group."""


class FencedInstanceId(GroupError):
    """Another process joined with this instance id and took the seat (KIP-345). Fatal for this member."""

    def __init__(self, group: str, instance_id: str) -> None:
        self.group = group
        self.instance_id = instance_id
        super().__init__(
            f"Another process took the seat {instance_id!r} in group {group!r} (FENCED_INSTANCE_ID). "
            "Either a second query or reader runs with the same group and instance id prefix: give each query its own "
            "`instanceIdPrefix`; a self-join, or two load()s in one query, are two readers that want every record "
            "each: give each load() its own `kafka.group.id`. Or an old driver is still alive, or only its stream "
            "reader (a process `python_streaming_source_runner` whose JVM is gone): stop it; the newest one keeps the "
            "seat."
        )


class GroupRejected(GroupError):
    """The group will not have this member as it is; retrying cannot help."""


class GroupUnsettled(GroupError):
    """The group did not come to rest within a bound; the message says what was awaited."""


class ChannelEnded(KgroupError):
    """The other end of a channel hung up, was silent for too long, or does not speak like one of ours."""


class KeyRefused(KgroupError):
    """The two ends of a channel do not hold the same key: another query's, or a stranger."""


class RegistryUnreachable(KgroupError):
    """An executor cannot reach the registry in the driver's stream-reader process."""

    def __init__(self, host: str, port: int, reason: object) -> None:
        super().__init__(
            f"This executor cannot reach the stream reader on the driver at {host}:{port} ({reason}). A query that has "
            "just been stopped, or has ended, leaves tasks behind that say this: then there is nothing to do. If it "
            "still runs, open that port from executors to the driver, or say with the options `registryHost` and "
            "`registryPort` under which address and port executors reach the driver."
        )


class SeatRefused(KgroupError):
    """A task asks for a ticket of a scan that is over, or that was never planned here."""

    def __init__(self, scan_id: int, ticket: int) -> None:
        super().__init__(
            f"The stream reader on the driver does not know ticket {ticket} of scan {scan_id}. If its batch is over, "
            "this task is a straggler: nothing is lost, nothing to do. If the query fails with this, restart it: the "
            "checkpoint says what to read."
        )


class IllegalTransition(KgroupError):
    """A state machine met an event that its table does not have: a bug of ours."""

    def __init__(self, role: str, state: str, event: str) -> None:
        super().__init__(f"{role}: event {event} is not in the table for state {state}")
