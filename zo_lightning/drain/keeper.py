"""Keeps a first-order run's state safe while it trains: decides when to copy what, and never lets training wait long."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zo_lightning.drain.capture import Capture, why_not
from zo_lightning.drain.messages import NOTE_BYTES, Failed, Rollback, Saved, Setup, TreeNote
from zo_lightning.drain.plan import Mode, Plan, choose
from zo_lightning.drain.process import Host
from zo_lightning.drain.random_state import collect, restore
from zo_lightning.drain.ring import offsets
from zo_lightning.drain.tree import split
from zo_lightning.drain.window import Target

log = logging.getLogger(__name__)

KEY = "zo_lightning_drain"
_WARM_UP = 5  # steps that are timed before the plan is made
_DEPTH = 4  # slots: how far the host process may be behind
_SAMPLE_BYTES = 64 << 20  # copied to measure the bandwidth
_HUNG_SECONDS = 60.0
_RESTART_SECONDS = (1.0, 60.0)  # between deaths of the host process: first, and at most


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    """Settings of the drain.

    Attributes:
        mode: plain snapshots, a drain, or whichever fits.
        target: version that a drain's shards are brought to.
        rollback: how steps are taken back, for another target than ``newest``.
        tolerance: largest relative error that a guarded rollback may leave.
        tax: share of a step's time that copying may take, on average.
        max_stall: seconds that training waits in one window for a slow host process, at most.
        num_shards: of a drain, instead of what follows from ``tax``.
        keep: snapshots that stay.
    """

    mode: Mode = "auto"
    target: Target = "newest"
    rollback: Rollback = "guarded"
    tolerance: float = 1e-5
    tax: float = 0.03
    max_stall: float = 1.0
    num_shards: int | None = None
    keep: int = 2


@dataclass(slots=True)
class Counters:
    """What happened so far. Seconds and bytes are those of the training process."""

    saved_step: int = 0
    snapshots: int = 0
    proven: int = 0
    failed: int = 0
    abandoned: int = 0
    host_restarts: int = 0
    stalled_seconds: float = 0.0
    seconds: float = 0.0
    steps: int = 0
    state_bytes: int = 0
    gradient_bytes: int = 0
    bound: float = 0.0


class DrainKeeper:
    """Copies the state of one run to a host process, window after window.

    A callback calls ``start`` before training, the three ``on_`` methods where Lightning has them, and ``close``.

    Args:
        folder: of the store.
        options: settings.
    """

    def __init__(self, folder: Path, options: DrainOptions | None = None) -> None:
        self.folder, self.options, self.counters = folder, options or DrainOptions(), Counters()
        self.plan: Plan | None = None
        self._host: Host | None = None
        self._random: Any = None
        self._handle: Any = None

    def start(self, trainer: Any, module: Any) -> None:
        """Look at the optimizer and hook into its step. Only rank 0 keeps anything."""
        self._trainer, self._module = trainer, module
        self._capture: Capture | None = None
        self._intervals: list[float] = []
        self._step: int | None = None  # next step of the open window
        self._tree_due = False
        self._unsaved = 0  # snapshots that the host process has and has not reported
        self._since = 0  # steps since the last window began
        self._global_step, self._ended = trainer.global_step, time.perf_counter()
        self._restart_at, self._pause = 0.0, _RESTART_SECONDS[0]
        self.plan = None
        if trainer.is_global_zero and not trainer.fast_dev_run:
            self._handle = trainer.optimizers[0].register_step_post_hook(self._after_step)
            self._start_host()

    def wait_ready(self, seconds: float) -> bool:
        """Whether snapshots can be taken, waiting at most so long for the host process: for very short runs."""
        deadline = time.monotonic() + seconds
        while self._host is not None and not self._host.ready and self._host.alive and time.monotonic() < deadline:
            self._hear(self._host.poll(0.05))
        return self._host is not None and self._host.ready

    def close(self, seconds: float = 60.0) -> None:
        """Let the host process finish what it has, and end it."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        if self._host is not None:
            self._hear(self._host.finish(seconds))
            self._host = None

    def status(self) -> dict[str, float]:
        """Numbers for the log."""
        counted = self.counters
        steps, spent = max(counted.steps, 1), sum(self._intervals)
        return {
            "saved_step": float(counted.saved_step),
            "snapshots": float(counted.snapshots),
            "proven": float(counted.proven),
            "failed": float(counted.failed),
            "abandoned": float(counted.abandoned),
            "host_restarts": float(counted.host_restarts),
            "stalled_seconds": counted.stalled_seconds,
            "bound": counted.bound,
            "state_bytes_per_step": counted.state_bytes / steps,
            "gradient_bytes_per_step": counted.gradient_bytes / steps,
            "tax": counted.seconds / spent if spent else 0.0,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remember the random state of a restored checkpoint until the first batch."""
        self._random = checkpoint.get(KEY, {}).get("random")

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """See how far the gradients are about to be clipped."""

    def on_train_batch_start(self) -> None:
        """Put the random state back, once, behind all that Lightning draws when it starts."""
        if self._random is not None:
            restore(self._random)
            self._random = None

    def on_train_batch_end(self) -> None:
        """Copy the checkpoint's small parts at the target's step, or all of it; before that, measure and plan."""
        if self._handle is None:
            return
        started = time.perf_counter()
        if self._trainer.global_step != self._global_step:
            self._intervals.append(started - self._ended)
            self._global_step, self._ended = self._trainer.global_step, started
            self.counters.steps += self.plan is not None
            self._since += 1
        self._keep()
        self.counters.seconds += time.perf_counter() - started

    def _keep(self) -> None:
        if self.plan is None and self._host is not None and len(self._intervals) >= _WARM_UP:
            self._make_plan()
        elif self._host is not None:
            self._hear(self._host.poll())
            self._watch()
        elif time.monotonic() >= self._restart_at:
            self._start_host()
        if self._tree_due:
            self._send_tree()
        elif self.plan is not None and not self.plan.num_shards and self._may_begin():
            self._since = 0
            self._send_tree()

    def _make_plan(self) -> None:
        optimizer = self._trainer.optimizers[0]
        reason = why_not(optimizer)
        if reason and self.options.mode == "drain":
            log.warning("`checkpoint.mode=drain`: %s; plain snapshots are taken", reason)
        if reason is None:
            self._capture = Capture(optimizer, self._module.named_parameters())
        _, tensors = split(self._checkpoint(), {})
        state = self._capture.state if self._capture else tensors
        self.plan = choose(
            mode="snapshot" if reason else self.options.mode,
            target=self.options.target,
            num_shards=self.options.num_shards,
            state_bytes=_size(state),
            grad_bytes=_size(state[::3]),
            bandwidth=_bandwidth(state),
            step_seconds=statistics.median(self._intervals),
            tax=self.options.tax,
        )
        log.info("%s", self.plan.reason)
        if not self.plan.num_shards:
            self._capture = None
        self._since = self.plan.every
        self._configure_host()

    def _start_host(self) -> None:
        self._step, self._tree_due, self._unsaved = None, False, 0
        try:
            self._host = Host()
        except OSError as error:
            self._lose_host(f"it cannot start: {error}")
        if self.plan is not None:
            self._configure_host()

    def _configure_host(self) -> None:
        if self._host is None or self.plan is None:
            return
        known = self._capture.known if self._capture else {}
        _, rest = split(self._checkpoint(), known)
        setup = Setup(
            parameters=self._capture.parameters if self._capture else (),
            num_shards=self.plan.num_shards,
            target=self.options.target,
            rollback=self.options.rollback,
            tolerance=self.options.tolerance,
            bitwise=self._capture is None or self._capture.is_bitwise,
            folder=self.folder,
            keep=self.options.keep,
            slot_bytes=0,
            depth=_DEPTH if self._capture else 2,
        )
        self._setup = setup.with_room(_span([(t.dtype, t.numel()) for t in rest]) + NOTE_BYTES)
        try:
            self._host.configure(self._setup)
        except OSError as error:
            self._lose_host(f"no memory to share with it: {error}")

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._capture is None or self._host is None:
            return
        started = time.perf_counter()
        self._hear(self._host.poll())
        if self._step is None and self._may_begin():
            self._step, self._since, self._stall = 0, 0, self.options.max_stall
        if self._step is not None:
            self._copy_step(self._capture, self._host, self._step)
        self.counters.seconds += time.perf_counter() - started

    def _copy_step(self, capture: Capture, host: Host, step: int) -> None:
        slot = self._slot(host)
        if slot is None:
            return self._abandon()
        note, tensors_N = capture.take(self._setup, step)
        host.send(slot, note, tensors_N)
        captured = 3 * len(self._setup.captured(step))
        self.counters.state_bytes += _size(tensors_N[:captured])
        self.counters.gradient_bytes += _size(tensors_N[captured:])
        self._tree_due = self._tree_due or step == self._setup.window.version
        self._step = step + 1
        if self._step == self._setup.num_shards:
            self._step, self._unsaved = None, self._unsaved + 1

    def _send_tree(self) -> None:
        host = self._host
        self._tree_due = False
        if host is None:
            return
        self._stall = self.options.max_stall if self._capture is None else self._stall
        slot = self._slot(host)
        if slot is None:
            return self._abandon()
        tree, tensors = split(self._checkpoint(), self._capture.known if self._capture else {})
        types = tuple((tensor.dtype, tensor.numel()) for tensor in tensors)
        host.send(slot, TreeNote(tree=tree, tensors=types, global_step=self._trainer.global_step), tensors)
        if self._capture is None:
            self.counters.state_bytes += _size(tensors)
            self._unsaved += 1

    def _may_begin(self) -> bool:
        """Two snapshots may be on their way to the disk: an older one means that the host process is behind."""
        host, plan = self._host, self.plan
        return host is not None and plan is not None and host.ready and self._unsaved < 2 and self._since >= plan.every

    def _slot(self, host: Host) -> int | None:
        started = time.perf_counter()
        while (slot := host.take_slot()) is None and self._stall > 0 and host.alive:
            before = time.perf_counter()
            self._hear(host.poll(self._stall))
            self._stall -= time.perf_counter() - before
        self.counters.stalled_seconds += time.perf_counter() - started
        return slot

    def _abandon(self) -> None:
        self._step, self._tree_due = None, False
        self.counters.abandoned += 1
        log.warning("the host process is behind: a snapshot is left out (%d so far)", self.counters.abandoned)

    def _hear(self, replies: Sequence[Any]) -> None:
        for reply in replies:
            self._unsaved = max(self._unsaved - 1, 0)
            if isinstance(reply, Saved):
                self.counters.snapshots += 1
                self.counters.proven += reply.proven
                self.counters.saved_step, self.counters.bound = reply.global_step, reply.bound
                self._pause = _RESTART_SECONDS[0]
            elif isinstance(reply, Failed):
                self.counters.failed += 1
                log.error("a snapshot failed, older ones are as they were: %s", reply.reason)

    def _watch(self) -> None:
        host = self._host
        assert host is not None
        if not host.alive:
            self._lose_host("it ended")
        elif host.silence > _HUNG_SECONDS:
            self._lose_host(f"it said nothing for {_HUNG_SECONDS:.0f} s")

    def _lose_host(self, reason: str) -> None:
        if self._host is not None:
            self._host.kill()
        self._host, self._step, self._tree_due = None, None, False
        self.counters.host_restarts += 1
        log.error("the host process of the drain is lost (%s): another one starts in %.0f s", reason, self._pause)
        self._restart_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _RESTART_SECONDS[1])

    def _checkpoint(self) -> dict[str, Any]:
        checkpoint: dict[str, Any] = self._trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        checkpoint[KEY] = {"random": collect()}
        return checkpoint


def _size(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _span(types: Sequence[tuple[torch.dtype, int]]) -> int:
    return list(offsets([dtype.itemsize * numel for dtype, numel in types]))[-1]


def _bandwidth(tensors: Sequence[torch.Tensor]) -> float:
    """Bytes a second of copies to the CPU, the better of two, over a sample of the tensors."""
    sample, size = [], 0
    for tensor in tensors:
        if size < _SAMPLE_BYTES:
            sample.append(tensor.reshape(-1)[: _SAMPLE_BYTES // tensor.element_size()])
            size += _size(sample[-1:])
    copies = [torch.empty_like(tensor, device="cpu") for tensor in sample]
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        torch._foreach_copy_(copies, sample)
        seconds.append(time.perf_counter() - started)
    return size / max(min(seconds), 1e-9)
