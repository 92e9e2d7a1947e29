"""What the store answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a save did.

    Attributes:
        step: that was saved.
        bytes_written: over all tiers.
        bytes_reused: of blocks that were there already, over all tiers.
        seconds: it took.
        tiers: that hold the checkpoint now; at least one.
        complaints: a sentence for everything that failed beside that.
    """

    step: int
    bytes_written: int
    bytes_reused: int
    seconds: float
    tiers: tuple[str, ...]
    complaints: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A checkpoint as it was saved.

    Attributes:
        step: completed steps.
        tree: new containers and CPU tensors.
        digest: of the live state, made when it was saved.
        complaints: a sentence, with file and cause, for everything that was bad on the way to it.
    """

    step: int
    tree: Any
    digest: str
    complaints: tuple[str, ...]
