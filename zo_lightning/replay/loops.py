"""A backend for Lightning's loops alone: a journal leads them through a run again.

Loops, schedule, optimizer counters and the data's position are then where they were, by the code that moves them in
training, and the checkpoint of any step is one that training could have written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zo_lightning.core.bank import check_version
from zo_lightning.core.types import Capabilities, StepRecord


class LoopsBackend:
    """What training needs of an open ``core.roles.Backend`` where every step is recorded: it holds no factors.

    Args:
        capabilities: of the run's own backend.
        snapshot: of the factors at the step where the loops will stop.
        advance: called after each step.
    """

    def __init__(self, capabilities: Capabilities, snapshot: dict[str, Any], advance: Callable[[], None]) -> None:
        self.capabilities = capabilities
        self.version, self.is_open = 0, True
        self._snapshot, self._advance = snapshot, advance

    def commit(self, record: StepRecord) -> None:
        """Count the step."""
        check_version(record.version, self.version)
        self.version += 1
        self._advance()

    def snapshot(self) -> dict[str, Any]:
        """The factors at the last step."""
        check_version(self._snapshot["version"], self.version)
        return self._snapshot

    def load(self, snapshot: dict[str, Any]) -> None:
        """Go on from a checkpoint of the run."""
        self.version = snapshot["version"]
