"""Keeps a first-order run's state safe while it trains: plans, copies window after window, replaces a lost host."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch

from zo_lightning.drain.attendant import Attendant
from zo_lightning.drain.capture import Capture, why_not
from zo_lightning.drain.measure import bandwidth
from zo_lightning.drain.messages import KEY, Report, Setup, exactness
from zo_lightning.drain.options import DrainOptions
from zo_lightning.drain.plan import Plan, choose
from zo_lightning.drain.random_state import collect, restore
from zo_lightning.drain.ring import size_of, span, types_of
from zo_lightning.drain.tree import split
from zo_lightning.drain.windows import Traffic, Windows
from zo_lightning.errors import ConfigError
from zo_lightning.goodput.kept import Kept
from zo_lightning.supervisor import heartbeat
from zo_lightning.supervisor.heartbeat import TRAINING

log = logging.getLogger(__name__)

WARM_UP = 5  # steps that are timed before the plan is made
_START_SECONDS = 30.0  # that the first window waits for the host process, which starts beside the warm-up
_DEPTH = 4  # slots of a drain: how many steps the host process may be behind


class DrainKeeper:
    """Keeps one training run; rank 0 alone does.

    A callback calls ``load`` with a restored checkpoint, ``start`` before the first batch, ``batch_start``,
    ``before_optimizer_step`` and ``step_end`` where Lightning has hooks of such names, ``save`` for each checkpoint,
    then ``finish`` and ``close``.

    Args:
        options: settings.

    Attributes:
        plan: how snapshots are taken; none yet in the first steps.
        paused: no further window begins.
        attendant: sees to the host process.
    """

    def __init__(self, options: DrainOptions) -> None:
        self._options = options
        self.plan: Plan | None = None
        self.paused = False
        self.attendant = Attendant()
        self._hooks: list[Any] = []
        self._random: Any = None
        self._traffic = Traffic()
        self._capture: Capture | None = None
        self._windows: Windows | None = None
        self._intervals: list[float] = []  # of the warm-up
        self._elapsed = 0.0
        self._seconds, self._waited, self._steps, self._hooked = 0.0, 0.0, 0, 0
        self._since, self._skipped = 0, 0
        self._logged = Report()

    def setup(self, trainer: Any) -> None:
        """Nothing is restored here: a checkpoint file begins the run."""

    def load(self, checkpoint: Mapping[str, Any]) -> None:
        """Keep the random state of a restored checkpoint for the first batch."""
        self._random = checkpoint.get(KEY, {}).get("random")

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Put the random state of this moment into a checkpoint."""
        checkpoint[KEY] = {"random": collect()}

    def start(self, trainer: Any, module: Any) -> None:
        """Hook into the optimizer's step, and start the host process beside the first steps.

        Raises:
            ConfigError: if the target cannot be had with these parameters.
        """
        self._trainer, self._module = trainer, module
        self._global_step, self._ended = trainer.global_step, time.perf_counter()
        if trainer.is_global_zero:
            self._check_types(trainer.optimizers[0])
            optimizer = trainer.optimizers[0]
            self._hooks = [
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
            ]
            self.attendant.start()

    def batch_start(self) -> None:
        """Put the random state back, once, behind all that Lightning draws when it starts."""
        if self._random is not None:
            restore(self._random)
            self._random = None

    def before_optimizer_step(self, trainer: Any) -> None:
        """See the gradients before their norm is clipped."""
        clips = trainer.gradient_clip_val and trainer.gradient_clip_algorithm in (None, "norm")
        if clips and self._capture is not None:
            self._capture.before_clipping()

    def step_end(self, trainer: Any, module: Any) -> None:
        """Copy what belongs to the step's end; plan, once some steps are timed; replace a lost host process."""
        if not self._hooks:
            return
        started = time.perf_counter()
        if trainer.global_step != self._global_step:
            self._count_step(started)
        attendant = self.attendant
        attendant.poll()
        if attendant.host is None:
            if attendant.start() and self.plan is not None:
                self._configure_host(self.plan)
        elif (trouble := attendant.trouble()) is not None:
            self._lose_host(trouble)
        elif self._windows is None:
            self._plan_if_timed()
        elif self._capture is not None:
            self._windows.batch_end(trainer.global_step)
        elif self._may_begin():
            self._since = 0
            self._windows.snapshot(trainer.global_step)
        if attendant.total != self._logged:
            self._logged = attendant.total
            self._log_news()
        self._seconds += time.perf_counter() - started

    def finish(self, trainer: Any, module: Any) -> None:
        """Training has come to its end, which the run's own checkpoint keeps."""
        self.close()
        total = self.attendant.total
        if total.saved_step is not None:
            log.info(
                "last durable snapshot: step %d, %s; last verified restore: step %s",
                total.saved_step,
                exactness(total.bound),
                total.verified_step,
            )

    def close(self, seconds: float = 60.0) -> None:
        """Let the host process finish what it has, and end it. Idempotent."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.attendant.finish(seconds)

    def wait_ready(self, seconds: float) -> bool:
        """Whether snapshots can be taken, waiting at most so long for the host process."""
        return self.attendant.wait_ready(seconds, lambda: heartbeat().beat(TRAINING, self._global_step))  # no hang

    def status(self) -> dict[str, float]:
        """Numbers for the log. ``tax`` is the share of the other time that was spent here."""
        total, steps = self.attendant.total, max(self._steps, 1)
        others = self._elapsed - self._seconds
        return {
            "saved_step": float(total.saved_step or 0),
            "verified_step": float(total.verified_step or 0),
            "saves": float(total.saves),
            "proven": float(total.proven),
            "refused": float(total.refused),
            "failures": float(total.failures),
            "failed_drills": float(total.failed_drills),
            "dropped": float(total.dropped + self._traffic.abandoned),
            "bound": total.bound,
            "skipped_steps": float(self._skipped),
            "host_restarts": float(self.attendant.num_lost),
            "stalled_seconds": self._traffic.stalled_seconds,
            "state_bytes_per_step": self._traffic.state_bytes / steps,
            "gradient_bytes_per_step": self._traffic.gradient_bytes / steps,
            "tax": self._seconds / others if others > 0 else 0.0,
        }

    def _log_news(self) -> None:
        """Straight to the loggers: Lightning's own way takes 15 ms for so many numbers, a fifth of a small step."""
        news = {f"checkpoint/{name}": value for name, value in self.status().items()}
        for logger in self._trainer.loggers:
            logger.log_metrics(news, step=self._global_step - 1)  # Lightning counts from 0

    def kept(self) -> Kept | None:
        """What it has cost so far; None before it is known how snapshots are taken."""
        plan, total, traffic = self.plan, self.attendant.total, self._traffic
        if plan is None:
            return None
        drains = plan.num_shards > 0
        return Kept(
            way="drain" if drains else "snapshot",
            tax=self._seconds + self._waited - traffic.stalled_seconds,
            stall=traffic.stalled_seconds,
            start=self._waited,
            busy=self._windows is not None and self._windows.busy,
            snapshots=traffic.sent,
            saves=total.saves,
            save_seconds=total.seconds,
            drain_steps=plan.num_shards if drains else 1,
            state_bytes=plan.state_bytes,
            bandwidth=plan.bandwidth,
        )

    def _before_step(self, *_: Any) -> None:
        if self._windows is not None:
            started = time.perf_counter()
            self._windows.before_step()
            self._seconds += time.perf_counter() - started

    def _after_step(self, *_: Any) -> None:
        self._hooked += 1
        if self._windows is None or self._capture is None:
            return
        started = time.perf_counter()
        self.attendant.poll()
        if self._may_begin():
            self._since = 0
            self._windows.begin()
        self._windows.after_step()
        self._seconds += time.perf_counter() - started

    def _count_step(self, now: float) -> None:
        self._elapsed += now - self._ended
        if self.plan is None:
            self._intervals.append(now - self._ended)
        self._global_step, self._ended = self._trainer.global_step, now
        self._since += 1
        self._steps += self._windows is not None
        self._skipped += self._hooked == 0  # float16 found an overflow: Lightning counts the step, AdamW never saw it
        self._hooked = 0

    def _may_begin(self) -> bool:
        assert self._windows is not None and self.plan is not None
        due = (self._since >= self.plan.every or self._windows.left_out) and not self.paused
        return due and self._windows.may_begin()

    def _plan_if_timed(self) -> None:
        if self.plan is None and len(self._intervals) >= WARM_UP:
            self.plan = self._make_plan()
            self._since = self.plan.every
            self._configure_host(self.plan)
            self._await_host()

    def _await_host(self) -> None:
        """Let no step go by without a window: what is lost with them is bounded from the first one on."""
        started = time.perf_counter()
        ready = self.wait_ready(_START_SECONDS)
        waited = time.perf_counter() - started
        self._seconds -= waited  # once in a process: no part of a step's tax
        self._waited += waited
        self._ended += waited
        self._traffic.stalled_seconds += waited
        if not ready:
            log.warning("the drain's host process is not there after %.0f s: training goes on without it", waited)
        elif waited > 1:
            log.info("training waited %.1f s for the drain's host process to start", waited)

    def _make_plan(self) -> Plan:
        optimizer, options = self._trainer.optimizers[0], self._options
        reason = why_not(optimizer)
        if reason is not None:
            log.warning("only plain snapshots are taken: %s", reason)
        else:
            self._capture = Capture(optimizer, self._module.named_parameters())
        state = self._capture.state if self._capture else split(self._checkpoint(), {})[1]
        plan = choose(
            mode="snapshot" if reason else options.mode,
            target=options.target,
            num_shards=options.num_shards,
            state_bytes=size_of(state),
            grad_bytes=size_of(state[::3]),
            bandwidth=bandwidth(state),
            step_seconds=statistics.median(self._intervals),
            tax=options.tax,
        )
        if not plan.num_shards:
            self._capture = None
        log.info("%s", plan.reason)
        return plan

    def _configure_host(self, plan: Plan) -> None:
        host = self.attendant.host
        assert host is not None
        options, capture = self._options, self._capture
        setup = Setup(
            parameters=capture.parameters if capture else (),
            num_shards=plan.num_shards,
            target=options.target,
            rollback=options.rollback,
            tolerance=options.tolerance,
            bitwise=capture is None or capture.is_bitwise,
            folder=options.folder,
            mirrors=options.mirrors,
            keep=options.keep,
            slot_bytes=0,
            depth=_DEPTH if capture else 2,
        )
        setup = setup.with_room(span(types_of(split(self._checkpoint(), capture.known if capture else {})[1])))
        try:
            host.configure(setup)
        except OSError as error:
            return self._lose_host(f"no memory to share with it: {error}")
        self._windows = Windows(host, setup, capture, self._checkpoint, options.max_stall, self._traffic)

    def _lose_host(self, reason: str) -> None:
        self.attendant.lose(reason)
        self._windows = None

    def _checkpoint(self) -> dict[str, Any]:
        checkpoint: dict[str, Any] = self._trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        return checkpoint  # it went through `save`

    def _check_types(self, optimizer: torch.optim.Optimizer) -> None:
        kinds = {p.dtype for group in optimizer.param_groups for p in group["params"]}
        target, mode = self._options.target, self._options.mode
        if target != "newest" and mode != "snapshot" and kinds != {torch.float32}:
            raise ConfigError(
                f"`checkpoint.drain.target={target}` takes steps back, which only float32 parameters allow: "
                "set it to newest"
            )
