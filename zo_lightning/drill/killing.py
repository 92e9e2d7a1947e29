"""A process that kills itself in the middle of one of its file operations."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

from zo_lightning.checkpoint import files

_OPERATIONS = ("create", "append", "replace", "remove", "sync_folder")


def kill_self() -> None:
    """SIGKILL: nothing is flushed, no handler runs."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_operation(number: int) -> None:
    """From now on, count what this process changes through ``LocalFiles``, and kill it in change ``number``.

    A write gets half of its bytes to the file before; everything else is not done. Whoever makes the files, journal,
    store or a fault, ends in ``LocalFiles``, so that it is replaced for the whole of this process, which is to die.
    """
    counter = itertools.count(1)  # its next() is atomic: the store writes in a thread of its own

    def dying(operation: Callable[..., Any]) -> Callable[..., Any]:
        def die_or_do(*args: Any) -> Any:
            if next(counter) == number:
                kill_self()
            return operation(*args)

        return die_or_do

    def write(file: Any, data: bytes) -> None:
        if next(counter) == number:
            whole_write(file, data[: len(data) // 2])
            kill_self()
        whole_write(file, data)

    for name in _OPERATIONS:
        setattr(files.LocalFiles, name, dying(getattr(files.LocalFiles, name)))
    whole_write = files._LocalFile.write
    files._LocalFile.write = write  # type: ignore[method-assign, assignment]
    files._LocalFile.sync = dying(files._LocalFile.sync)  # type: ignore[method-assign]
