"""Reads checkpoints back and proves that what comes out is what the run held when it saved them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from zo_lightning.checkpoint.store import Loaded, Store, StoreError

SHARE = 0.1  # of the time, for drills

log = logging.getLogger(__name__)


class RestoreDrill:
    """A restore as after a crash, without the crash. It holds one more copy of the checkpoint while it runs.

    Args:
        store: of the run.
        digest_of: the digest of a loaded checkpoint, by the same function that made the live one. It may bring an older
            snapshot up to its step first.
        clock: seconds, never going back.

    Attributes:
        last_verified_step: the newest step whose restore gave the live digest; none yet.
        failures: restores that failed or gave another digest.
    """

    def __init__(
        self, store: Store, digest_of: Callable[[Loaded], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._digest_of, self._clock = store, digest_of, clock
        self._due = -math.inf
        self.last_verified_step: int | None = None
        self.failures = 0

    def run(self) -> bool:
        """Restore the newest checkpoint and compare. A failure is counted and logged, never raised as an error.

        Returns:
            Whether the newest checkpoint is what it should be.
        """
        begun = self._clock()
        try:
            problem = self._problem()
        finally:
            ended = self._clock()
            self._due = ended + (ended - begun) * (1 / SHARE - 1)
        if problem:
            self.failures += 1
            log.error("restore drill: %s", problem)
        return problem is None

    def due_in(self) -> float:
        """Seconds until the next may begin, so that drills take at most ``SHARE`` of the time; 0 for the first."""
        return max(0.0, self._due - self._clock())

    def _problem(self) -> str | None:
        newest = max(self._store.steps(), default=None)
        if newest is None:
            return "there is nothing to restore"
        try:
            loaded = self._store.load(newest)
        except StoreError as error:
            return str(error)
        for complaint in loaded.complaints:
            log.warning("restore drill: %s", complaint)
        restored = self._digest_of(loaded)
        if restored != loaded.digest:
            return f"step {newest} comes back as {restored[:16]}, and the run held {loaded.digest[:16]}"
        self.last_verified_step = newest
        return None
