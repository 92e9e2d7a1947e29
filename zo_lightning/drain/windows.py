"""The trainer's side of windows: one after another, each step copied to the host process or the window left out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zo_lightning.drain.capture import Capture
from zo_lightning.drain.messages import Setup, TreeNote
from zo_lightning.drain.process import Host
from zo_lightning.drain.ring import size_of, types_of
from zo_lightning.drain.tree import split

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Traffic:
    """What windows have cost so far, over all host processes.

    Attributes:
        sent: windows that are whole at the host process.
        abandoned: windows left out, since a slot was not free in time or too small.
        stalled_seconds: that training waited.
        state_bytes: copied of parameters and moments, or of plain snapshots.
        gradient_bytes: copied of gradients, and of residuals.
    """

    sent: int = 0
    abandoned: int = 0
    stalled_seconds: float = 0.0
    state_bytes: int = 0
    gradient_bytes: int = 0


class Windows:
    """Windows of one host process.

    Args:
        host: configured.
        setup: that it was told.
        capture: of the optimizer; None for plain snapshots.
        checkpoint: makes Lightning's checkpoint of this moment.
        max_stall: see ``DrainOptions``.
        traffic: to count in.
    """

    def __init__(
        self,
        host: Host,
        setup: Setup,
        capture: Capture | None,
        checkpoint: Callable[[], dict[str, Any]],
        max_stall: float,
        traffic: Traffic,
    ) -> None:
        self._host, self._setup, self._capture, self._checkpoint = host, setup, capture, checkpoint
        self._max_stall, self._stall, self._traffic = max_stall, 0.0, traffic
        self._step: int | None = None  # the open window's next
        self._tree_due = False
        self._sent = 0

    def busy(self, done: int) -> bool:
        """Whether a window is open, or on its way to the disk.

        Args:
            done: see ``may_begin``.
        """
        return self._step is not None or self._tree_due or self._sent > done

    def may_begin(self, done: int) -> bool:
        """Whether a window can begin; two on their way to the disk mean that the host process is behind.

        Args:
            done: windows of which nothing more is to come.
        """
        return self._step is None and not self._tree_due and self._host.ready and self._sent - done < 2

    def begin(self) -> None:
        """Begin a window with the step at hand."""
        self._step, self._stall = 0, self._max_stall

    def before_step(self) -> None:
        """In the optimizer's pre-hook."""
        if self._capture is not None and self._step is not None:
            self._capture.before_step(self._setup, self._step)

    def after_step(self) -> None:
        """In the optimizer's post-hook: copy the step's part, if a window is open."""
        capture, step = self._capture, self._step
        if capture is None or step is None:
            return
        slot = self._slot()
        if slot is None:
            return self._abandon("the host process is behind")
        note, tensors_N = capture.take(self._setup, step)
        if not self._host.send(slot, note, tensors_N):
            return self._abandon("residuals of these steps take more room than was reserved")
        num_states = 3 * len(self._setup.captured(step))
        self._traffic.state_bytes += size_of(tensors_N[:num_states])
        self._traffic.gradient_bytes += size_of(tensors_N[num_states:])
        self._tree_due = self._tree_due or step == self._setup.window.version
        self._step = step + 1
        if self._step == self._setup.num_shards:
            self._step = None
            self._count()

    def batch_end(self, global_step: int) -> None:
        """Copy the checkpoint of the target's step, if it is that; Lightning's loops now stand at the step's end."""
        if self._tree_due:
            self._send_tree(global_step)

    def snapshot(self, global_step: int) -> None:
        """Copy all of the checkpoint at once."""
        self._stall = self._max_stall
        if self._send_tree(global_step):
            self._count()

    def _send_tree(self, global_step: int) -> bool:
        self._tree_due = False
        slot = self._slot()
        if slot is None:
            self._abandon("the host process is behind")
            return False
        tree, tensors = split(self._checkpoint(), self._capture.known if self._capture else {})
        note = TreeNote(tree=tree, tensors=types_of(tensors), global_step=global_step)
        if not self._host.send(slot, note, tensors):
            self._abandon("the checkpoint has grown beyond the room that was reserved")
            return False
        self._traffic.state_bytes += size_of(tensors)
        return True

    def _slot(self) -> int | None:
        started = time.perf_counter()
        while (slot := self._host.take_slot()) is None and self._stall > 0 and self._host.alive:
            before = time.perf_counter()
            self._host.poll(self._stall)
            self._stall -= time.perf_counter() - before
        self._traffic.stalled_seconds += time.perf_counter() - started
        return slot

    def _count(self) -> None:
        self._sent += 1
        self._traffic.sent += 1

    def _abandon(self, reason: str) -> None:
        self._step, self._tree_due = None, False
        self._traffic.abandoned += 1
        log.warning("a snapshot is left out (%d so far): %s", self._traffic.abandoned, reason)
