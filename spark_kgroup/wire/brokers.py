"""Connections to the brokers of one cluster: one pooled for each, which of them to ask, and when to ask again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from math import inf
from random import Random
from typing import Any, Final, TypeVar

from spark_kgroup.errors import (
    AuthenticationFailed,
    BrokerError,
    ConnectionFailed,
    Disconnected,
    ProtocolViolation,
    RequestTimedOut,
    WireError,
)
from spark_kgroup.limits import CONNECT_TIMEOUT_MS, NEXT_BROKER_AFTER_MS
from spark_kgroup.peer_words import printable_words
from spark_kgroup.rights import RIGHTS_MISSING, Rights
from spark_kgroup.wire import messages, schema
from spark_kgroup.wire.address import Address
from spark_kgroup.wire.backoff import Backoff
from spark_kgroup.wire.connection import Connection
from spark_kgroup.wire.pace import Pace
from spark_kgroup.wire.race import first_success
from spark_kgroup.wire.schema import Request, Response
from spark_kgroup.wire.security.settings import Security
from spark_kgroup.wire.witnesses import Witnesses

log = logging.getLogger(__name__)

T = TypeVar("T")

_CLOSED: Final = "The cluster's connections were closed here."

_CHECK_BOOTSTRAP: Final = "Check the bootstrap servers (`bootstrap.servers`)."

_ATTEMPT_S: Final = 0.02
"""An attempt with less time would mostly end with the word that it had none: the error before it says more (ours)."""

ENDS_AT_S: Final[ContextVar[float]] = ContextVar("ENDS_AT_S")
"""When the bound ends the call that this task works for, by the event loop's clock."""


class NotKnownYet(BrokerError):
    """No broker has told of a topic so far. The retries log no warning: the caller's names the topic."""


class AnotherCluster(ConnectionFailed):
    """A broker of another cluster is at an address, which may be given back. To all others it is `ConnectionFailed`."""

    def __init__(self, address: Address, cluster_id: str | None, ours: str) -> None:
        super().__init__(
            f"A broker of another cluster is at {address} (cluster id {printable_words(cluster_id)}, was "
            f"{printable_words(ours)}): its answers are not used. Correct `bootstrap.servers`. If the cluster was "
            "replaced on purpose, start anew: with a fresh checkpoint and a fresh sink, if there are any."
        )


class SharedWork:
    """Work that runs once for all callers that ask for it meanwhile. Belongs to one event loop, and must be closed."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._closed = False

    async def join_or_start(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the `work` that is running for `key`, which goes on for other callers if one gives up.

        Args:
            key: the kind of work, and what it is about.
            work: begins it, if none is running for `key`.

        Raises:
            Disconnected: `close` was called.
            WireError: the work failed. Each caller gets an error of its own.
        """
        if self._closed:
            raise Disconnected(_CLOSED)
        if key not in self._running:
            self._running[key] = asyncio.create_task(work(), name=f"for all who ask for {key}")
            self._running[key].add_done_callback(lambda done: self._forget(key, done))
        task: asyncio.Task[T] = self._running[key]
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise  # our caller was cancelled, not the work
            raise Disconnected(_CLOSED) from None
        except WireError as error:
            raise error.again() from error  # each caller's own, since a traceback grows with each raise

    async def close(self) -> None:
        """Cancel all work. Callers that still wait for it, and all later ones, raise `Disconnected`."""
        self._closed = True
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, key: Hashable, done: asyncio.Task[Any]) -> None:
        del self._running[key]
        if not done.cancelled():
            done.exception()  # retrieved, or asyncio logs it if all callers have given up


class Retries:
    """How a question to a cluster is asked again: with backoff, within a bound, and with patience for missing rights.

    Attributes:
        api_timeout_ms: the bound of a call whose caller gives none.
    """

    def __init__(self, api_timeout_ms: int, rng: Random) -> None:
        self.api_timeout_ms = api_timeout_ms
        self._rng = rng
        # A leader is known from Metadata, which takes the same right as ListOffsets (KafkaApis: DESCRIBE on the topic).
        self._rights: dict[str, Rights] = {"ListOffsets": Rights(granted=True)}
        """Name of an API -> whether we may use it."""

    def backoff(self) -> Backoff:
        """The waits between the attempts of one call."""
        return Backoff(self._rng)

    def rights_to(self, api: str) -> Rights:
        """Whether we may use the API of this name, and since when we may not."""
        return self._rights.setdefault(api, Rights())

    def be_patient(self, error: WireError, api: str) -> None:
        """Make the error retriable if it says that rights are missing which we had a moment ago."""
        missing = isinstance(error, BrokerError) and error.code in RIGHTS_MISSING and error.api == api
        if missing and self.rights_to(api).may_come_back(round(time.monotonic() * 1000)):
            error.retriable = True

    async def run(self, attempt: Callable[[], Awaitable[T]], timeout_ms: int | None, api: str = "") -> T:
        """The result of the first `attempt` that succeeds: it is repeated after errors that may pass.

        Rights to use the `api` that we had may be missing for `AUTHORIZATION_GRACE_MS`.

        Raises:
            WireError: that of the last attempt, or of the first that cannot pass.
            RequestTimedOut: an attempt was under way when the time was up.
        """
        timeout_ms = timeout_ms or self.api_timeout_ms
        deadline_s = time.monotonic() + timeout_ms / 1000
        backoff = self.backoff()
        failed: WireError | None = None
        while True:
            try:
                async with end_after(round((deadline_s - time.monotonic()) * 1000), of_ms=timeout_ms, failed=failed):
                    result = await attempt()
                self.rights_to(api).on_granted()
                return result
            except WireError as error:
                self.be_patient(error, api)
                wait_s = backoff.next_ms() / 1000
                if not error.retriable or time.monotonic() + wait_s > deadline_s - _ATTEMPT_S:
                    raise
                # One warning for a call: its later attempts mostly fail for the same reason.
                expected = failed is not None or isinstance(error, NotKnownYet)
                log.log(logging.DEBUG if expected else logging.WARNING, "Trying again: %s", error)
                failed = error
            await asyncio.sleep(wait_s)
            if time.monotonic() > deadline_s - _ATTEMPT_S:  # a busy machine slept for longer
                raise failed


class Connections:
    """Connections to the brokers of one cluster: one for each address is pooled. Belongs to one event loop.

    Args:
        shared: where callers that ask for the same new connection meet.
        client_id: what brokers log of this client.
        security: how each connection is secured.
        request_timeout_ms: bound on each request.
        rng: for the waits between connections that fail.
        alive: whether this client goes on.
        has_answered: whether the cluster has told its brokers' addresses. From then on, a peer that is no broker has an
            address only until its broker comes back.
        cluster_id: of the only cluster whose answers are used, or None for the one that answers first.

    Attributes:
        cluster_id: of the cluster whose answers are used, or None if no broker has said it yet.
    """

    def __init__(
        self,
        shared: SharedWork,
        *,
        client_id: str,
        security: Security,
        request_timeout_ms: int,
        rng: Random,
        alive: Callable[[], bool],
        has_answered: Callable[[], bool],
        cluster_id: str | None = None,
    ) -> None:
        self.cluster_id = cluster_id
        self._shared = shared
        self._client_id = client_id
        self._security = security
        self._request_timeout_ms = request_timeout_ms
        self._alive = alive
        self._has_answered = has_answered
        self._pool: dict[Address, Connection] = {}
        self._pace = Pace(rng)

    @property
    def addresses(self) -> list[Address]:
        """Those to which a pooled connection is open."""
        return [address for address, connection in self._pool.items() if not connection.closed]

    async def ask(self, address: Address, request: Request) -> Response:
        """One request to the broker at `address` on the pooled connection, which is opened anew if it ended.

        Raises:
            WireError: no answer.
        """
        connection = self._pool.get(address)
        if connection is None or connection.closed:
            self._pace.check_in_time(address, ENDS_AT_S.get())
            connection = await self._open_pooled(address)
        return await connection.call(request)

    async def speaks(self, address: Address, api_key: int, version: int) -> bool:
        """Whether the broker at `address` knows this version of an API.

        Raises:
            WireError: it could not be reached.
        """
        # A connection that has ended will do, for it keeps the versions that were negotiated.
        return (self._pool.get(address) or await self._open_pooled(address)).speaks(api_key, version)

    async def open_own(self, address: Address) -> Connection:
        """A new connection of the caller's own, which is not pooled.

        Raises:
            WireError: none came about, or none could in time.
        """
        self._pace.check_in_time(address, ENDS_AT_S.get())
        return await self._open(address)

    def check_cluster(self, address: Address, answer: schema.MetadataResponse) -> None:
        """Remember the id of the cluster that answers first, if none is known. No other cluster's answers are used.

        Raises:
            ConnectionFailed: the answer is from another cluster.
        """
        if self.cluster_id is None:
            self.cluster_id = answer.cluster_id
        # An answer without an id does not contradict the known one.
        elif answer.cluster_id not in (None, self.cluster_id):
            raise AnotherCluster(address, answer.cluster_id, self.cluster_id)

    async def drop(self, address: Address) -> None:
        """Close the pooled connection to `address`, if there is one."""
        if (connection := self._pool.pop(address, None)) is not None:
            await connection.close()

    async def close(self) -> None:
        """Close every pooled connection. Calls that still wait raise `Disconnected`."""
        pool, self._pool = self._pool, {}
        for connection in pool.values():
            await connection.close()

    async def _open_pooled(self, address: Address) -> Connection:
        """A new connection for the pool. All callers that ask while it is being opened share it, or its failure."""

        async def open_and_pool() -> Connection:
            self._pool[address] = await self._open(address)
            return self._pool[address]

        return await self._shared.join_or_start(("connection", address), open_and_pool)

    async def _open(self, address: Address) -> Connection:
        turn = await self._pace.turn(address)
        try:
            connection = await Connection.open(
                address,
                turn=turn,
                client_id=self._client_id,
                security=self._security,
                request_timeout_ms=self._request_timeout_ms,
                alive=self._alive,
            )
            await self._check_whose(connection)
        except ProtocolViolation as error:
            failure = self._not_a_broker(address, error)
            self._pace.on_failed(address, failure.again())
            raise failure from error
        except WireError as error:
            self._pace.on_failed(address, error.again())
            raise
        self._pace.on_opened(address, connection)
        return connection

    async def _check_whose(self, connection: Connection) -> None:
        """Ask a new connection for its cluster: an address may have passed to a broker of another one.

        Raises:
            ConnectionFailed: it has. The connection is closed, and the error is retriable: the address may be given
                back.
            WireError: no answer. The connection is closed.
        """
        if self.cluster_id is None:
            return
        try:
            timeout_ms = min(self._request_timeout_ms, CONNECT_TIMEOUT_MS)
            answer = await connection.call(messages.metadata(()), timeout_ms=timeout_ms)
            assert isinstance(answer, schema.MetadataResponse)
            self.check_cluster(connection.address, answer)
        except BaseException:
            await connection.close()
            raise

    def _not_a_broker(self, address: Address, error: ProtocolViolation) -> WireError:
        if self._has_answered():
            # This cluster has answered before: the program that has a broker's address just now will give it back.
            return ConnectionFailed(str(error))
        message = str(error) if str(address) in str(error) else f"{address}: {error}"
        return ProtocolViolation(f"{message} {_CHECK_BOOTSTRAP}")


class Brokers:
    """The brokers of one cluster: which of them to ask, and how. Belongs to one event loop, and must be closed.

    Attributes:
        nodes: node id -> its address, as a broker said last.
        witnesses: in which order brokers are asked.
        shared: look-ups and new connections that several callers wait for.
        connections: pooled ones, and callers' own.
        retries: how a question is asked again.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str,
        security: Security,
        request_timeout_ms: int,
        api_timeout_ms: int,
        rng: Random,
        alive: Callable[[], bool],
        cluster_id: str | None = None,
    ) -> None:
        self._bootstrap = tuple(bootstrap)
        self.nodes: Mapping[int, Address] = {}
        self.witnesses = Witnesses()
        self.shared = SharedWork()
        self.connections = Connections(
            self.shared,
            client_id=client_id,
            security=security,
            request_timeout_ms=request_timeout_ms,
            rng=rng,
            alive=alive,
            has_answered=lambda: bool(self.nodes),
            cluster_id=cluster_id,
        )
        self.retries = Retries(api_timeout_ms, rng)

    async def close(self) -> None:
        """Cancel what is shared, and close every pooled connection. Calls that still wait raise `Disconnected`."""
        await self.shared.close()
        await self.connections.close()

    async def ask_any(self, request: Request) -> tuple[Address, Response]:
        """Ask until one answers: brokers we are connected to, then those we know of, then the bootstrap list.

        Doubted brokers come after all others (`Witnesses`).

        Returns:
            The address that answered, and its response.

        Raises:
            ConnectionFailed: no broker can be reached.
            WireError: the peer that answered is no broker, or refuses us.
        """

        async def ask(address: Address) -> tuple[Address, Response]:
            return address, await self.connections.ask(address, request)

        refused: dict[Address, WireError] = {}
        addresses = self.witnesses.in_order([*self.connections.addresses, *self.nodes.values(), *self._bootstrap])
        attempts = [(address, partial(ask, address)) for address in addresses]
        answer = await first_success(attempts, patience_ms=NEXT_BROKER_AFTER_MS, failure=WireError, failures=refused)
        if answer is not None:
            self.witnesses.heard(answer[0], addresses, time.monotonic())
            return answer
        errors = list(refused.values())
        # Brokers that all refuse us, or that we all refuse, were reached: their own error says more than the summary.
        alike = any(all(isinstance(e, kind) for e in errors) for kind in (AuthenticationFailed, AnotherCluster))
        if alike or not any(e.retriable for e in errors):
            raise errors[0]
        failures = "; ".join(str(e) if str(a) in str(e) else f"{a}: {e}" for a, e in refused.items())
        raise ConnectionFailed(f"No broker could be reached. {_CHECK_BOOTSTRAP} Tried: {failures}")

    async def reach(self) -> None:
        """Ask every broker that is known once, until one answers: for a person who waits, and can try again.

        Raises:
            ConnectionFailed: no broker can be reached.
            WireError: the peer that answered is no broker, or refuses us.
        """
        async with end_after(self.retries.api_timeout_ms):
            await self.ask_any(messages.metadata(()))

    async def reach_advertised(self, *, timeout_ms: int) -> None:
        """See that a broker answers under the address that it advertises: leaders and coordinators are asked there.

        Raises:
            ConnectionFailed: none does, while the bootstrap servers, which named these addresses, are reached.
            WireError: the peer at such an address is no broker, or refuses us.
        """

        async def attempt() -> None:
            advertised = dict.fromkeys(self.nodes.values())
            # One address is enough, because other brokers may be down.
            if not advertised or any(address in advertised for address in self.connections.addresses):
                return
            refused: dict[Address, WireError] = {}
            attempts = [
                (address, partial(self.connections.ask, address, messages.metadata(()))) for address in advertised
            ]
            if await first_success(attempts, patience_ms=NEXT_BROKER_AFTER_MS, failure=WireError, failures=refused):
                return
            if not any(error.retriable for error in refused.values()):
                raise next(iter(refused.values()))
            failures = "; ".join(str(e) if str(a) in str(e) else f"{a}: {e}" for a, e in refused.items())
            answered = ", ".join(str(address) for address in self.connections.addresses)
            raise ConnectionFailed(
                f"{answered} answers, but no broker can be reached at the address that it advertises: {failures} Each "
                "host that reads must reach every broker there: correct advertised.listeners in the brokers' settings, "
                "or names and routes of this host."
            )

        await self.retries.run(attempt, timeout_ms)

    async def check_answer(self, witness: Address, answer: schema.MetadataResponse) -> None:
        """As `Connections.check_cluster`, for an answer of `witness`, whose pooled connection is closed if that fails.

        Raises:
            ConnectionFailed: the answer is from another cluster.
        """
        try:
            self.connections.check_cluster(witness, answer)
        except ConnectionFailed:
            # An open connection is asked first, so it would give the same answer to the next question.
            self.witnesses.doubt(witness)
            await self.connections.drop(witness)
            raise


@asynccontextmanager
async def end_after(left_ms: int, *, of_ms: int | None = None, failed: WireError | None = None) -> AsyncIterator[None]:
    """End the block after `left_ms`. The error names the bound in all (`of_ms`), and the error that `failed` before."""
    ends_at_s = asyncio.get_running_loop().time() + max(0, left_ms) / 1000
    outer = ENDS_AT_S.set(min(ends_at_s, ENDS_AT_S.get(inf)))
    try:
        async with asyncio.timeout_at(ends_at_s):
            yield
    except TimeoutError:
        before = f" Before that: {failed}" if failed else ""
        raise RequestTimedOut(f"The cluster did not answer within {of_ms or left_ms} ms.{before}") from None
    finally:
        ENDS_AT_S.reset(outer)
