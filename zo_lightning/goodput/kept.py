"""What it costs to keep a run: to have its steps or its state outlive its process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What keeping a run has cost its process so far, and how it is done.

    Attributes:
        way: a journal, a drain in parts or plain snapshots.
        tax: seconds that steps took longer.
        stall: seconds that training waited.
        start: of ``stall``, once, before the first checkpoint of the process.
        busy: whether a snapshot is on its way.
        snapshots: taken, for which ``tax`` was spent.
        snapshot_seconds: of ``tax``, where a journal took the rest; without ``stall``.
        saves: snapshots that are durable.
        save_seconds: that those took, in the background.
        drain_steps: of a drain; 1 for a snapshot that is taken at once.
        state_bytes: of a snapshot; 0 where it is not known.
        bandwidth: of copies to the host, bytes a second; 0 where it is not known.
    """

    way: Literal["journal", "drain", "snapshot"]
    tax: float = 0.0
    stall: float = 0.0
    start: float = 0.0
    busy: bool = False
    snapshots: int = 0
    snapshot_seconds: float = 0.0
    saves: int = 0
    save_seconds: float = 0.0
    drain_steps: int = 1
    state_bytes: int = 0
    bandwidth: float = 0.0
