"""A small journal and a small checkpoint with something of everything that theirs may hold, and their truth."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from zo_lightning.checkpoint.files import LocalFiles
from zo_lightning.checkpoint.journal import Entry, Identity, Journal
from zo_lightning.checkpoint.journal.record import SHORTEST
from zo_lightning.checkpoint.journal.segment import HEADER_BYTES
from zo_lightning.core.types import DirectionKey, StepRecord

IDENTITY = Identity(method="d1" * 8, base="d2" * 32, layout="d3" * 32, seed=42, code="drill")
SEGMENT_BYTES = HEADER_BYTES + 3 * SHORTEST  # so that a few steps fill one


def entry(step: int) -> Entry:
    """A step of a run; every fourth is skipped, every third has several terms."""
    skipped = step % 4 == 3
    keys = [
        DirectionKey(seed=42, step=step, stage=step // 5, index=index) for index in range(3 if step % 3 == 2 else 1)
    ]
    terms = () if skipped else tuple((key, math.sin(step + 1) / (key.index + 1)) for key in keys)
    record = StepRecord(step=step, version=step, lr=1e-3 / (step + 1), terms=terms, skipped=skipped)
    return Entry(record=record, loss=math.nan if skipped else 0.5, cursor=4 * (step + 1))


def tree(step: int) -> dict[str, Any]:
    """A checkpoint as Lightning has it; one tensor is in a block, the others stand in the manifest."""
    weights = OrderedDict(left=torch.arange(320.0) + step, version=torch.tensor(step))
    return {
        "global_step": step,
        "lr": 1e-3 / (step + 1),
        "best": math.inf,
        "state_dict": weights,
        "optimizer_states": [{"state": {0: {"exp_avg": torch.full((3,), step, dtype=torch.bfloat16)}}}],
    }


def write_journal(folder: Path, steps: Sequence[int]) -> None:
    """Two lives: the first half of the steps, and after a recovery the second."""
    half = len(steps) // 2
    for part in (steps[:half], steps[half:]):
        journal = Journal(folder, IDENTITY, segment_bytes=SEGMENT_BYTES)
        for step in part:
            journal.append(entry(step))
        journal.close()


class HeldFiles(LocalFiles):
    """Files in memory, to be read with a change.

    Args:
        content: by path; none for a folder.
    """

    def __init__(self, content: dict[Path, bytes | None]) -> None:
        self.content = content

    @classmethod
    def of(cls, folder: Path) -> HeldFiles:
        """All files of a folder."""
        return cls({path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()})

    def read(self, path: Path) -> bytes:
        """See ``Files``."""
        held = self.content.get(path)
        if held is None:
            raise FileNotFoundError(2, "there is no such file", str(path))
        return held

    def names(self, path: Path) -> tuple[str, ...]:
        """See ``Files``."""
        return tuple(sorted(held.name for held in self.content if held.parent == path))
