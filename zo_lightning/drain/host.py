"""The host process: ``python -m zo_lightning.drain.host CONNECTION``, started by ``process.Host``.

It reads the ring, replays, and saves in a thread, one snapshot at a time, until the trainer closes the connection or
dies; then it finishes what it has and ends.
"""

from __future__ import annotations

import pickle
import sys
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

import torch
from filelock import FileLock

from zo_lightning.checkpoint.background import BackgroundSaver
from zo_lightning.checkpoint.restore_drill import RestoreDrill
from zo_lightning.checkpoint.store import Store
from zo_lightning.drain.errors import DrainError
from zo_lightning.drain.messages import Ready, Released, Report, Setup, StepNote, TreeNote
from zo_lightning.drain.reconcile import Reconciler
from zo_lightning.drain.ring import Ring
from zo_lightning.drain.tree import digest, tensors_of

LOCK = ".drain.lock"
_NEWS_SECONDS = 0.1  # between looks at what the saver has done
_LAST_SECONDS = 30.0  # for the last save


class Host:
    """Serves one trainer.

    Args:
        connection: to the trainer.
        ring: shared with it.
        setup: of the run.
    """

    def __init__(self, connection: Connection, ring: Ring, setup: Setup) -> None:
        self._connection, self._ring, self._setup = connection, ring, setup
        self._reconciler = Reconciler(setup)
        store = Store([setup.folder, *setup.mirrors], keep=setup.keep)
        self._drill = RestoreDrill(store, lambda loaded: digest(tensors_of(loaded.tree)))
        self._saver = BackgroundSaver(store, drill=self._drill)
        self._report = self._told = Report()

    def serve(self) -> None:
        """Until the trainer is gone; what it sent is finished."""
        self._tell(Ready())
        while (message := self._next()) is not None:
            slot, note = message
            self._take(slot, note)
            self._tell(Released(slot))
            self._tell_news()
        self._saver.close(_LAST_SECONDS)
        self._tell_news()

    def _next(self) -> tuple[int, StepNote | TreeNote] | None:
        try:
            while not self._connection.poll(_NEWS_SECONDS):
                self._tell_news()
            message = self._connection.recv()
        except (EOFError, OSError):  # the trainer died
            return None
        if message is None:
            return None
        slot, start, size = message
        return slot, pickle.loads(self._ring.raw(slot, start, size).numpy().data)

    def _take(self, slot: int, note: StepNote | TreeNote) -> None:
        if isinstance(note, StepNote):
            types = self._setup.types(note.step) + [(torch.uint8, size) for size in note.residuals]
            self._reconciler.step(note, self._ring.views(slot, types))
        else:
            self._reconciler.tree(note, self._ring.views(slot, note.tensors))
        if self._reconciler.complete:
            self._finish()

    def _finish(self) -> None:
        report = self._report
        try:
            snapshot = self._reconciler.finish()
        except DrainError as error:
            self._report = replace(report, refused=report.refused + 1, problem=str(error))
            return
        self._report = replace(report, proven=report.proven + snapshot.proven, bound=snapshot.bound)
        self._saver.submit(snapshot.global_step, snapshot.tree, digest(tensors_of(snapshot.tree)))

    def _tell_news(self) -> None:
        status = self._saver.status()
        self._report = replace(
            self._report,
            saves=status.saves,
            failures=status.failures,
            dropped=status.dropped,
            failed_drills=status.failed_drills,
            saved_step=status.last_saved_step,
            verified_step=status.last_verified_step,
            seconds=status.seconds,
        )
        if self._report != self._told:
            self._told = self._report
            self._tell(self._report)

    def _tell(self, reply: Any) -> None:
        with suppress(OSError):  # the trainer is gone: what it sent is still worth finishing
            self._connection.send(reply)


def main(descriptor: int) -> None:
    """Take the connection over, hear what is to be done, and serve."""
    torch.set_num_threads(1)
    connection = Connection(descriptor)
    try:
        setup = connection.recv()
        if not isinstance(setup, Setup):
            return
        ring = Ring(recv_handle(connection), slot_bytes=setup.slot_bytes, depth=setup.depth)
    except (EOFError, OSError):  # the trainer ended before it had a plan
        return
    setup.folder.mkdir(parents=True, exist_ok=True)
    with FileLock(setup.folder / LOCK):
        Host(connection, ring, setup).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
