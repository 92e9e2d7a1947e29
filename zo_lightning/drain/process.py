"""The trainer's side of the host process: starts it, fills slots, hears what it says, and waits no longer than told."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.reduction import send_handle
from typing import Any

import torch

from zo_lightning.drain.messages import Ready, Released, Report, Setup
from zo_lightning.drain.ring import Ring, span, types_of


class Host:
    """A host process, which takes a few seconds to be there; training goes on meanwhile.

    Attributes:
        ready: whether it can take a window.
        report: the newest of what it has said about snapshots.
    """

    def __init__(self) -> None:
        self.ready, self.report = False, Report()
        self._ring: Ring | None = None
        self._free: list[int] = []
        self._heard = time.monotonic()
        self._connection, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "zo_lightning.drain.host", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C and a kill of the trainer's group leave it to finish what it has
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        theirs.close()

    def configure(self, setup: Setup) -> None:
        """Tell it what it has to know, and share memory with it. Raises ``OSError`` where there is not so much."""
        self._ring = Ring.create(slot_bytes=setup.slot_bytes, depth=setup.depth)
        self._free = list(range(setup.depth))
        with suppress(OSError):  # it died: `alive` says so
            self._connection.send(setup)
            send_handle(self._connection, self._ring.descriptor, self._process.pid)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def idle(self) -> bool:
        """Whether it has read all that it was given."""
        return self._ring is None or len(self._free) == self._ring.depth

    @property
    def silence(self) -> float:
        """Seconds since it last said something, while it has something to do; 0 otherwise."""
        return 0.0 if self._ring is None or (self.ready and self.idle) else time.monotonic() - self._heard

    def poll(self, seconds: float = 0.0) -> None:
        """Hear what it has to say. Waits for a first word, at most so long."""
        with suppress(EOFError, OSError):  # it died: `alive` says so
            while self._connection.poll(seconds):
                reply, seconds, self._heard = self._connection.recv(), 0.0, time.monotonic()
                if isinstance(reply, Released):
                    self._free.append(reply.slot)
                elif isinstance(reply, Ready):
                    self.ready = True
                else:
                    self.report = reply

    @property
    def has_slot(self) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    def take_slot(self) -> int:
        """A free slot; there must be one."""
        if self.idle:
            self._heard = time.monotonic()
        return self._free.pop(0)

    def send(self, slot: int, note: Any, tensors_N: Sequence[torch.Tensor]) -> bool:
        """Copy tensors and a note into a slot, and tell of it.

        Args:
            slot: taken before.
            note: of the tensors.
            tensors_N: flat, on any device.

        Returns:
            Whether they fit; if not, the slot is free again.
        """
        assert self._ring is not None
        types = types_of(tensors_N)
        data, start = pickle.dumps(note), span(types)
        if start + len(data) > self._ring.slot_bytes:
            self._free.append(slot)
            return False
        if tensors_N:
            torch._foreach_copy_(self._ring.views(slot, types), list(tensors_N))
        self._ring.raw(slot, start, len(data)).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        with suppress(OSError):  # it died: `alive` says so
            self._connection.send((slot, start, len(data)))
        return True

    def finish(self, seconds: float) -> None:
        """Say that nothing more comes, and hear the rest; a process that takes longer is killed."""
        with suppress(OSError):
            self._connection.send(None)
        deadline = time.monotonic() + seconds
        while self.alive and time.monotonic() < deadline:
            self.poll(0.05)
        self.poll()
        self.kill()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
        if self._ring is not None:
            self._ring.close()
