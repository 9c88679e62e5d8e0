"""File descriptors: each seat has a connection of its own, and many systems give a process 1,024."""

from __future__ import annotations

import logging
import os

from spark_kgroup.errors import EnvironmentProblem
from spark_kgroup.limits import DESCRIPTORS_SPARE

log = logging.getLogger(__name__)


def make_room_for(seats: int) -> None:
    """Raise this process's soft limit as far as `seats` need it, and the hard one allows.

    No `select()` in this process minds numbers above 1,024. JVMs do the same for themselves.

    Raises:
        EnvironmentProblem: the hard limit has no room for them.
    """
    try:
        import resource  # here: Windows has neither it nor such a limit, and this module must import all the same
    except ImportError:
        return
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (float("inf") if limit == resource.RLIM_INFINITY else limit for limit in limits)
    least = len(os.listdir("/dev/fd")) + seats
    if hard < least:
        raise EnvironmentProblem(
            f"{seats} seats need {least} file descriptors in this process, whose limit is {hard:.0f}. Raise the limit "
            "of the shell or service that starts this process (ulimit -n, LimitNOFILE= of a systemd unit, nofile in "
            "limits.conf), or set fewer members."
        )
    wanted = min(hard, least + DESCRIPTORS_SPARE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(wanted), limits[1]))
        log.info("file descriptors of this process: %d instead of %d, for %d seats", wanted, soft, seats)
