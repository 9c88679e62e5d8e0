"""The secret that all queries of an application share, and with it the sidecars of their executors.

Runs on: driver, in the stream-reader process of each query, and in the user's own. Linux; elsewhere there are no
sidecars.

The first query leaves it in a folder of the driver's JVM that opens for this user alone. Spark ends stream readers
without a word, so others remove it: whatever of ours starts or ends on the driver's host after the JVM has ended. Not
before: readers that have the key, and listeners that look for it, would be parted.
"""

from __future__ import annotations

import hmac
import logging
import os
from contextlib import suppress
from pathlib import Path

from pyspark_kgroup.shared import process_folder
from pyspark_kgroup.shared.channel import KEY_BYTES, new_key
from spark_kgroup import __version__

log = logging.getLogger(__name__)


def key_folder(jvm: int) -> Path | None:
    """Where the driver with this pid has its key; None if none can be shared: each query has its own then."""
    try:
        return process_folder.folder_of(jvm, str(process_folder.start_ticks(jvm)), process_folder.KEY)
    except OSError as problem:
        log.info("this query shares no sidecars with others of its application: %s", problem)
        return None


def application_key(folder: Path, *, make: bool = True) -> bytes | None:
    """What queries make of it that have this version of the package: no other one understands their messages.

    Args:
        folder: the driver's (`key_folder`).
        make: whether to make it if there is none.

    Returns:
        None if none can be shared: such a query has a key and sidecars of its own.
    """
    try:
        if make:
            process_folder.sweep()
            process_folder.make(folder)
        process_folder.check(folder)
        secret = _secret(folder / "secret")
    except OSError as problem:
        log.info("this query shares no sidecars with others of its application: %s", problem)
        return None
    return hmac.digest(secret, f"spark-kgroup {__version__}".encode(), "sha256")


def _secret(path: Path) -> bytes:
    """What the file holds, made if there is none: whole from the first moment; raises OSError."""
    if not path.exists():
        draft = path.with_name(f"draft-{os.getpid()}")
        try:
            draft.touch(mode=0o600)
            draft.write_bytes(new_key())
            with suppress(FileExistsError):  # another query was faster
                os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    secret = path.read_bytes()
    if len(secret) != KEY_BYTES:
        raise OSError(f"{path} holds no key")
    return secret
