"""``failures.jsonl``: what was injected into a run, written before it strikes, so that a restart does not repeat it."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zo_lightning.failure.fault import Moment

LEDGER = "failures.jsonl"


class Ledger:
    """One line of JSON for each failure that struck.

    Args:
        folder: the run's; it may not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LEDGER
        self._lock = threading.Lock()  # writers of files have threads of their own

    def entries(self) -> list[dict[str, Any]]:
        """All lines, oldest first."""
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def claim(self, name: str, moment: Moment, *, step: int | None = None) -> bool:
        """Note that a failure strikes now, durable; False if it has struck before.

        Args:
            name: the failure's.
            moment: where the run is.
            step: for a failure that strikes more than once, but once at a step.
        """
        with self._lock:
            before = [entry for entry in self.entries() if entry["failure"] == name]
            if any(step is None or entry["step"] == step for entry in before):
                return False
            line = {"failure": name, **moment._asdict(), "pid": os.getpid(), "time": datetime.now(UTC).isoformat()}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
            return True
