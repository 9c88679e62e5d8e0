"""One boundary while it is being crossed: the state that its steps share.

Runs on: driver.

`start` is the same from the first step to the last. A step that waits for the group, or commits, returns the state with
the view that it saw last, so that the next step does not act on a membership that has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark_kgroup.driver.boundary.topic_logs import TopicLogs
from pyspark_kgroup.offsets.checkpoint import Checkpoint
from spark_kgroup.errors import GroupUnsettled
from spark_kgroup.model import TopicDescription
from spark_kgroup.runtime.views import GroupView

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryState:
    """The state of one boundary.

    Attributes:
        start: the end of the last completed batch, durable since Spark has it in its commit log.
        logs: the subscribed topics and their logs, as brokers show them.
        view: the seats as last seen.
    """

    start: Checkpoint
    logs: TopicLogs
    view: GroupView

    @property
    def topics(self) -> Mapping[str, TopicDescription]:
        """The subscribed topics that exist, as last seen."""
        return self.logs.topics

    def with_view(self, view: GroupView) -> BoundaryState:
        """The state after the seats were seen again."""
        return replace(self, view=view)

    def skip_trigger(self, why: str) -> None:
        """Warn that the next trigger tries again. Under AvailableNow raise, since there is no next trigger.

        Raises:
            GroupUnsettled: this is AvailableNow, which would end as if all was read.
        """
        unsettled = GroupUnsettled(why)
        if self.logs.bounded:
            raise unsettled
        log.warning("%s Trying again at the next trigger.", unsettled)
