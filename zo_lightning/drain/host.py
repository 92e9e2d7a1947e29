"""The host process: ``python -m zo_lightning.drain.host CONNECTION``, started by ``process.Host``.

It reads the ring, replays, and saves in a thread, one snapshot at a time, until the trainer closes the connection or
dies; then it finishes what it has and ends.
"""

from __future__ import annotations

import pickle
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

import torch
from filelock import FileLock

from zo_lightning.checkpoint.store import Store, StoreError
from zo_lightning.drain.errors import DrainError
from zo_lightning.drain.messages import Failed, Ready, Released, Saved, Setup, StepNote, TreeNote
from zo_lightning.drain.reconcile import Reconciler, Snapshot
from zo_lightning.drain.ring import Ring
from zo_lightning.drain.tree import digest, tensors_of

LOCK = ".drain.lock"


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
        self._store = Store([setup.folder], keep=setup.keep)
        self._saver = ThreadPoolExecutor(max_workers=1)
        self._saving: Future[None] | None = None
        self._sending = threading.Lock()

    def serve(self) -> None:
        """Until the trainer is gone."""
        self._tell(Ready())
        while (message := self._next()) is not None:
            slot, note = message
            self._take(slot, note)
            self._tell(Released(slot))
        self._saver.shutdown()

    def _next(self) -> tuple[int, Any] | None:
        try:
            message = self._connection.recv()
        except (EOFError, OSError):  # the trainer died
            return None
        if message is None:
            return None
        slot, start, size = message
        return slot, pickle.loads(self._ring.raw(slot, start, size).numpy())

    def _take(self, slot: int, note: StepNote | TreeNote) -> None:
        if isinstance(note, StepNote):
            self._reconciler.step(note, self._ring.views(slot, self._setup.types(note.step)))
        else:
            self._reconciler.tree(note, self._ring.views(slot, note.tensors))
        if self._reconciler.complete:
            self._finish()

    def _finish(self) -> None:
        try:
            snapshot = self._reconciler.finish()
        except DrainError as error:
            self._tell(Failed(reason=str(error)))
            return
        if self._saving is not None:
            self._saving.result()  # one at a time: the ring fills meanwhile, and the trainer leaves a window out
        self._saving = self._saver.submit(self._save, snapshot)

    def _save(self, snapshot: Snapshot) -> None:
        started = time.monotonic()
        try:
            self._store.save(snapshot.global_step, snapshot.tree, digest(tensors_of(snapshot.tree)))
        except (OSError, StoreError) as error:
            self._tell(Failed(reason=str(error)))
            return
        self._tell(
            Saved(
                global_step=snapshot.global_step,
                seconds=time.monotonic() - started,
                bound=snapshot.bound,
                proven=snapshot.proven,
            )
        )

    def _tell(self, reply: Any) -> None:
        with self._sending, suppress(OSError):  # the trainer is gone: what it sent is still worth finishing
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
