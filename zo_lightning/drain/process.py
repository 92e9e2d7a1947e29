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
from typing import Any

import torch

from zo_lightning.drain.messages import Ready, Released, Setup
from zo_lightning.drain.ring import Ring, offsets

class Host:
    """A host process.

    Attributes:
        ready: whether it can take a window.

    Args:
        setup: what it is told.
    """

    def __init__(self, setup: Setup) -> None:
        self.ready = False
        self._ring = Ring.create(slot_bytes=setup.slot_bytes, depth=setup.depth)
        self._free = list(range(setup.depth))
        self._heard = time.monotonic()
        self._connection, theirs = Pipe()
        descriptors = (theirs.fileno(), self._ring.descriptor)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "zo_lightning.drain.host", *map(str, descriptors)],
            pass_fds=descriptors,
            start_new_session=True,  # Ctrl-C and a kill of the trainer's group leave it to finish what it has
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        self._connection.send(setup)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def idle(self) -> bool:
        """Whether it has read all that it was given."""
        return len(self._free) == self._ring.depth

    @property
    def silence(self) -> float:
        """Seconds since it last said something, while it has something to read; 0 otherwise."""
        return 0.0 if self.ready and self.idle else time.monotonic() - self._heard

    def poll(self, seconds: float = 0.0) -> list[Any]:
        """What it has said about snapshots. Waits for a first word, at most so long."""
        replies: list[Any] = []
        with suppress(EOFError, OSError):  # it died: `alive` says so
            while self._connection.poll(seconds):
                reply, seconds, self._heard = self._connection.recv(), 0.0, time.monotonic()
                if isinstance(reply, Released):
                    self._free.append(reply.slot)
                elif isinstance(reply, Ready):
                    self.ready = True
                else:
                    replies.append(reply)
        return replies

    def take_slot(self) -> int | None:
        """A free slot, if there is one."""
        if self.idle:
            self._heard = time.monotonic()
        return self._free.pop(0) if self._free else None

    def send(self, slot: int, note: Any, tensors_N: Sequence[torch.Tensor]) -> None:
        """Copy tensors and a note into a slot, and tell of it.

        Args:
            slot: taken before.
            note: of the tensors.
            tensors_N: flat, on any device.

        Raises:
            ValueError: if they do not fit the slot.
        """
        types = [(tensor.dtype, tensor.numel()) for tensor in tensors_N]
        if tensors_N:
            torch._foreach_copy_(self._ring.views(slot, types), list(tensors_N))
        *_, start = offsets([dtype.itemsize * numel for dtype, numel in types])
        data = pickle.dumps(note)
        if start + len(data) > self._ring.slot_bytes:
            raise ValueError(f"{len(data)} bytes beside {start} do not fit a slot of {self._ring.slot_bytes}")
        self._ring.raw(slot, start, len(data)).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        with suppress(OSError):  # it died: `alive` says so
            self._connection.send((slot, start, len(data)))

    def finish(self, seconds: float) -> list[Any]:
        """Say that nothing more comes, and hear the rest; a process that takes longer is killed."""
        with suppress(OSError):
            self._connection.send(None)
        deadline, replies = time.monotonic() + seconds, []
        while self.alive and time.monotonic() < deadline:
            replies += self.poll(0.05)
        replies += self.poll()
        self.kill()
        return replies

    def kill(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self._ring.close()
