"""Where logs end, asked of leaders that may be away: as `EndListing`, with no socket and no clock."""

from collections.abc import Callable, Iterable, Sequence

from spark_kgroup.errors import BrokerError, KgroupError
from spark_kgroup.limits import API_TIMEOUT_MS
from spark_kgroup.model import ErrorCode, TopicPartition
from spark_kgroup.wire.listing import Answers


class FakeListing:
    """Leaders are asked until they answer: a look gets the answers of all leaders that can answer by then.

    Args:
        partitions: the partitions to ask for.
        ask: gives the answers for some partitions, within a patience in ms.
        now_ms: the clock.
    """

    def __init__(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[Sequence[TopicPartition], int], Answers[int]],
        now_ms: Callable[[], int],
    ) -> None:
        self._left: Sequence[TopicPartition] = list(partitions)
        self._ask = ask
        self._now_ms = now_ms
        self._ends_at_ms = now_ms() + API_TIMEOUT_MS
        self._ends: dict[TopicPartition, int] = {}
        self._problem: KgroupError | None = None
        self._ask_leaders(0)

    def answers(self, patience_ms: int) -> Answers[int]:
        if not self.ended:
            self._ask_leaders(patience_ms)
        if self._problem is not None:
            raise self._problem
        return Answers(dict(self._ends), {tp: no_leader(tp) for tp in self._left})

    @property
    def ended(self) -> bool:
        return not self._left or self._now_ms() >= self._ends_at_ms

    def _ask_leaders(self, patience_ms: int) -> None:
        if not self._left or self._problem is not None:
            return
        try:
            answers = self._ask(self._left, patience_ms)
        except KgroupError as error:
            self._problem = error  # raised when the answers are needed
            return
        self._ends |= answers.found
        self._left = list(answers.unanswered)


def no_leader(tp: TopicPartition) -> BrokerError:
    return BrokerError("ListOffsets", ErrorCode.LEADER_NOT_AVAILABLE, str(tp))


def unstable(tp: TopicPartition) -> BrokerError:
    return BrokerError("OffsetFetch", ErrorCode.UNSTABLE_OFFSET_COMMIT, str(tp))
