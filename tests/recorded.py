"""Runs with a journal, whose live digests are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.journals import IDENTITY
from zo_lightning.backends.digest import digest_factors
from zo_lightning.checkpoint.journal import Entry, Journal
from zo_lightning.optim import ZOOptimizer


def record_steps(monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[int, str]:
    """Let every step be journalled; returns the digests after each number of steps."""
    journal = Journal(folder / "checkpoints" / "journal" / "rank0", IDENTITY, fsync="none")
    digests: dict[int, str] = {}
    cursor = 0
    step = ZOOptimizer.step

    def journalled(self: ZOOptimizer, closure: Any = None) -> Any:
        nonlocal cursor
        make = self._record

        def _record() -> Any:
            nonlocal cursor
            cursor += sum(len(request.examples) for request in self._requests) // 2
            return journal.append(Entry(record=make(), loss=self.estimate.loss, cursor=cursor)).record

        self._record = _record  # type: ignore[method-assign]
        try:
            loss = step(self, closure)
        finally:
            self._record = make  # type: ignore[method-assign]
        digests[self._backend.version] = digest_factors(self._backend.snapshot())
        return loss

    monkeypatch.setattr(ZOOptimizer, "step", journalled)
    return digests
