"""Saves in the background: training goes on meanwhile, whatever the disk does."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from tenacity import (
    Retrying,
    retry_if_not_exception_type,
    sleep_using_event,
    stop_after_attempt,
    stop_when_event_set,
    wait_exponential,
)

from zo_lightning.checkpoint.restore_drill import RestoreDrill
from zo_lightning.checkpoint.store import Receipt, Store, UnsupportedTypeError

log = logging.getLogger(__name__)


def detached_copy(tree: Any) -> Any:
    """The tree with containers and CPU tensors of its own, as a background save needs it.

    Examples:
        >>> tree = {"weights": [torch.zeros(2)]}
        >>> copy = detached_copy(tree)
        >>> tree["weights"][0] += 1
        >>> copy
        {'weights': [tensor([0., 0.])]}
    """
    if isinstance(tree, torch.Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        copy = type(tree)()
        for key, value in tree.items():
            copy[key] = detached_copy(value)
        return copy
    if type(tree) in (list, tuple):  # a set and a torch.Size hold nothing that changes
        return type(tree)(map(detached_copy, tree))
    return set(tree) if type(tree) is set else tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What became of the saves so far.

    Attributes:
        saves: that are in at least one tier.
        incomplete: of these, with a tier that did not take it or another complaint.
        failures: given up after all attempts.
        dropped: not begun, since a newer one came before the disk was ready.
        failed_drills: restores that failed or gave another digest.
        last_saved_step: none yet, or the newest.
        last_verified_step: the newest whose restore gave the live digest.
        seconds: spent in saves that succeeded.
    """

    saves: int
    incomplete: int
    failures: int
    dropped: int
    failed_drills: int
    last_saved_step: int | None
    last_verified_step: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class _Job:
    step: int
    tree: Any
    digest: str


class BackgroundSaver:
    """One thread that saves what it is given, the newest first to stay.

    Nothing is raised into training: a save that fails is tried again with growing pauses, then counted and logged.

    Args:
        store: where to.
        drill: restores each save that nothing else is waiting behind.
        max_queued: saves that may wait beside the one that is being written; so many copies are in memory.
        patience: seconds that ``submit`` waits for room at most. Then the oldest that waits is dropped for the new one.
        attempts: at one save.
        pause: seconds before the second attempt; twice as many before each further one, at most 30.

    Attributes:
        waited: seconds that ``submit`` has waited for room.
    """

    def __init__(
        self,
        store: Store,
        *,
        drill: RestoreDrill | None = None,
        max_queued: int = 1,
        patience: float = 0.0,
        attempts: int = 4,
        pause: float = 0.5,
    ) -> None:
        self._store, self._drill = store, drill
        self._max_queued, self._patience = max_queued, patience
        self._hurry = threading.Event()  # no more attempts: the run ends
        self._retrying = Retrying(
            retry=retry_if_not_exception_type(UnsupportedTypeError),
            stop=stop_after_attempt(attempts) | stop_when_event_set(self._hurry),
            wait=wait_exponential(multiplier=pause, max=30),
            sleep=sleep_using_event(self._hurry),
            reraise=True,
        )
        self._changed = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._busy = self._closing = False
        self._saves = self._incomplete = self._failures = self._dropped = 0
        self._seconds = self.waited = 0.0
        self._last_saved: int | None = None
        self._thread = threading.Thread(target=self._work, name="checkpoint-saver", daemon=True)
        self._thread.start()

    def submit(self, step: int, tree: Any, digest: str) -> bool:
        """Save a checkpoint some time soon.

        Args:
            step: completed steps.
            tree: the saver's own from now on (``detached_copy``): what changes in it may change in the file.
            digest: of the live state.

        Returns:
            Whether it waits for its turn; otherwise it was dropped, and counted.
        """
        with self._changed:
            started = time.perf_counter()
            self._changed.wait_for(lambda: len(self._queue) < self._max_queued, timeout=self._patience)
            self.waited += time.perf_counter() - started
            if self._closing:
                self._drop(step, "the saver is closed")
                return False
            while len(self._queue) >= self._max_queued:
                self._drop(self._queue.popleft().step, f"the save of step {step} came before the disk was ready")
            self._queue.append(_Job(step, tree, digest))
            self._changed.notify_all()
        return True

    @property
    def busy(self) -> bool:
        """Whether a save is being written or waits."""
        return self._busy or bool(self._queue)

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is left to save, ``timeout`` seconds at most.

        Returns:
            Whether nothing is left.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._busy, timeout=timeout)

    def close(self, timeout: float) -> bool:
        """Save what waits, within ``timeout`` seconds, and end. Idempotent.

        Returns:
            Whether nothing was left; otherwise a save still runs, in a thread that ends with the process.
        """
        deadline = time.monotonic() + timeout
        drained = self.drain(timeout)
        with self._changed:
            self._closing = True
            self._hurry.set()
            while self._queue:
                self._drop(self._queue.popleft().step, "the run ended first")
            self._changed.notify_all()
        self._thread.join(max(0.0, deadline - time.monotonic()))  # the last restore drill
        return drained

    def status(self) -> Status:
        """What became of the saves so far."""
        with self._changed:
            return Status(
                saves=self._saves,
                incomplete=self._incomplete,
                failures=self._failures,
                dropped=self._dropped,
                failed_drills=self._drill.failures if self._drill else 0,
                last_saved_step=self._last_saved,
                last_verified_step=self._drill.last_verified_step if self._drill else None,
                seconds=self._seconds,
            )

    def _drop(self, step: int, reason: str) -> None:
        self._dropped += 1
        log.warning("step %d was not saved: %s", step, reason)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._succeeded(self._retrying(self._store.save, job.step, job.tree, job.digest))
            except Exception as error:  # whatever it is, training goes on
                self._failed(job.step, error)
            del job  # its tensors
            try:
                self._use_idle_time()
            except Exception as error:
                log.error("what was saved could not be looked after: %s", error)

    def _next(self) -> _Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            if not self._queue:
                return None
            self._busy = True
            self._changed.notify_all()
            return self._queue.popleft()

    def _succeeded(self, receipt: Receipt) -> None:
        for complaint in receipt.complaints:
            log.warning("%s", complaint)
        with self._changed:
            self._saves += 1
            self._incomplete += bool(receipt.complaints)
            self._seconds += receipt.seconds
            self._last_saved = receipt.step
            self._busy = False
            self._changed.notify_all()

    def _failed(self, step: int, error: Exception) -> None:
        log.error("step %d could not be saved: %s", step, error)
        with self._changed:
            self._failures += 1
            self._busy = False
            self._changed.notify_all()

    def _use_idle_time(self) -> None:
        if self._queue:
            return
        for complaint in self._store.catch_up():
            log.warning("%s", complaint)
        if self._drill and not self._queue:
            self._drill.run()
