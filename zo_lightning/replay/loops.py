"""A backend that knows what a run was answered, so that Lightning's loops can be led through it again.

Loops, schedule, optimizer counters and the data's position are then where they were, by the code that moves them in
training, and the checkpoint of any step is one that training could have written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from zo_lightning.core.bank import check_version
from zo_lightning.core.roles import Direction, Update
from zo_lightning.core.types import (
    BankSpec,
    Capabilities,
    EvalRequest,
    Layout,
    Observation,
    StepRecord,
    Workload,
)
from zo_lightning.errors import ConfigError
from zo_lightning.replay.run import Run


class LoopsBackend:
    """Implements what ``core.roles.Backend`` needs in training; it holds no factors.

    Args:
        run: whose losses are the answers.
        capabilities: of the run's own backend.
        snapshot: of the factors at the step where the loops will stop.
        advance: called after each step.
    """

    def __init__(
        self, run: Run, capabilities: Capabilities, snapshot: dict[str, Any], advance: Callable[[], None]
    ) -> None:
        self.capabilities = capabilities
        self.version, self.is_open = 0, False
        self._run, self._snapshot, self._advance = run, snapshot, advance
        self._cursor: int | None = 0

    def open(
        self,
        layout: Layout,
        direction: Direction,
        update: Update,
        bank: BankSpec,
        workloads: Sequence[Workload] = (),
    ) -> None:
        """There is nothing to load."""
        self.is_open = True

    def evaluate(self, requests: Sequence[EvalRequest]) -> tuple[Observation, ...]:
        """The loss that was recorded, for each request."""
        entry = self._run.entries[self.version]
        if self._cursor is not None:
            self._cursor += len(requests[0].examples)
        loss = math.nan if entry.record.skipped else entry.loss
        return tuple(Observation(losses=(loss,), weights=(1.0,)) for _ in requests)

    def commit(self, record: StepRecord) -> None:
        """Count the step.

        Raises:
            ConfigError: if the data was handed out otherwise than in the run.
        """
        check_version(record.version, self.version)
        recorded = self._run.entries[self.version].cursor
        if self._cursor is not None and self._cursor != recorded:
            raise ConfigError(
                f"step {record.step} ends with {self._cursor} training examples handed out, the run's with {recorded}: "
                "its data or `data.batch_size` was another then"
            )
        self.version, self._cursor = self.version + 1, recorded
        self._advance()

    def snapshot(self) -> dict[str, Any]:
        """The factors at the last step."""
        check_version(self._snapshot["version"], self.version)
        return self._snapshot

    def load(self, snapshot: dict[str, Any]) -> None:
        """Go on from a checkpoint of the run."""
        self.version = snapshot["version"]
        before = self._run.entries.get(self.version - 1)
        self._cursor = before.cursor if before is not None else None

    def close(self) -> None:
        """There is nothing to release."""
        self.is_open = False
