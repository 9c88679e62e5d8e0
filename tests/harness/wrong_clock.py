"""A host whose clock is wrong, and may jump: the Python processes that run there see another time of day.

Python's monotonic clock, and the clocks of Java and of the file system, stay right.
"""

from pathlib import Path


class WrongClock:
    """The clock of one host.

    Args:
        path: its file: by how many nanoseconds the clock is ahead, in 8 bytes. Its processes look there at each
            question for the time (`stop_points/sitecustomize`).
        ahead_s: negative if it is behind.
    """

    def __init__(self, path: Path, ahead_s: int = 0) -> None:
        self.path = path
        path.write_bytes(_bytes(ahead_s))

    def jump(self, ahead_s: int) -> None:
        """Be ahead by so many seconds from now on."""
        with self.path.open("r+b") as file:  # in place: the processes have mapped this very file
            file.write(_bytes(ahead_s))

    @property
    def environment(self) -> dict[str, str]:
        """For the processes of this host, beside `application.stop_environment`."""
        return {"KGROUP_CLOCK": str(self.path)}


def _bytes(ahead_s: int) -> bytes:
    return (ahead_s * 1_000_000_000).to_bytes(8, "little", signed=True)
