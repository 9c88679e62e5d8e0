"""A pytest plugin: no test of a mutant may compute for ever, or ask for all memory.

mutmut's own limit is on the time that passes, which on a busy machine says little: a mutant that loops is told here by
the CPU it uses. `RLIMIT_CPU` sends SIGXCPU, which mutmut counts as a timeout.
"""

import os
import resource

import pytest

ADDRESS_SPACE_BYTES = 4 << 30
"""A mutant's endless loop may collect objects. A whole process of these tests maps 1 GiB."""
CPU_S_MAX = int(os.environ["KGROUP_MUTANT_CPU_S_MAX"])

resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _allow(soft_s: float) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = resource.RLIM_INFINITY if soft_s == resource.RLIM_INFINITY else int(soft_s)
    if hard != resource.RLIM_INFINITY:
        soft = hard if soft == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _allow(used.ru_utime + used.ru_stime + CPU_S_MAX + 1)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    _allow(resource.RLIM_INFINITY)
