"""What trainer and host process tell each other. Tensors go through the ring; these are small, but for ``Setup``."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from zo_lightning.drain.adamw import Hyper
from zo_lightning.drain.pieces import Piece, cut
from zo_lightning.drain.ring import offsets
from zo_lightning.drain.window import Target, Window

NOTE_BYTES = 1 << 20
"""Room in a slot for what is no tensor."""
PAGE = 1 << 14

Rollback = Literal["guarded", "residuals"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A drained parameter."""

    name: str
    numel: int
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True)
class Setup:
    """All that the host process has to know, once.

    Attributes:
        parameters: that are drained; none for plain snapshots.
        num_shards: of a window.
        target: of a window.
        rollback: how a step is taken back.
        tolerance: largest relative error that a guarded rollback may have.
        bitwise: whether a replay gives the bits of the step.
        folder: of the store.
        keep: snapshots that stay.
        slot_bytes: of the ring.
        depth: of the ring.
    """

    parameters: tuple[Parameter, ...]
    num_shards: int
    target: Target
    rollback: Rollback
    tolerance: float
    bitwise: bool
    folder: Path
    keep: int
    slot_bytes: int
    depth: int

    @functools.cached_property
    def window(self) -> Window:
        """The window's plan."""
        return Window(shards=self.num_shards, target=self.target)

    @functools.cached_property
    def shards(self) -> tuple[tuple[Piece, ...], ...]:
        """The pieces of each shard."""
        return cut([parameter.numel for parameter in self.parameters], self.num_shards)

    def with_room(self, num_bytes: int) -> Setup:
        """Slots that hold so many bytes, or any step's tensors beside a note."""
        steps = (list(offsets([d.itemsize * n for d, n in self.types(step)]))[-1] for step in range(self.num_shards))
        return replace(self, slot_bytes=-(-max([num_bytes, *(span + NOTE_BYTES for span in steps)]) // PAGE) * PAGE)

    def captured(self, step: int) -> tuple[tuple[int, Piece], ...]:
        """Shard and piece of the state that a step of the window copies."""
        return tuple((step, piece) for piece in self.shards[step])

    def logged(self, step: int) -> tuple[tuple[int, Piece], ...]:
        """Shard and piece of the gradients that a step of the window copies."""
        return tuple((shard, piece) for shard in self.window.shards_of(step) for piece in self.shards[shard])

    def types(self, step: int) -> list[tuple[torch.dtype, int]]:
        """Type and elements of each tensor of a step: parameter and moments of the captured, then the gradients."""
        captured = [piece for _, piece in self.captured(step) for _ in range(3)]
        pieces = captured + [piece for _, piece in self.logged(step)]
        return [(self.parameters[piece.param].dtype, piece.stop - piece.start) for piece in pieces]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNote:
    """What comes with the tensors of one step of a window.

    Attributes:
        step: of the window, from 0 on; 0 begins a new window, whatever came before.
        hypers: of each drained parameter; skipped where it had no gradient.
        clip: what gradients were multiplied by to clip their norm; the tensors are what came of it.
        digest: of the live state, at the target's step and on CPU.
    """

    step: int
    hypers: tuple[Hyper, ...]
    clip: float
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNote:
    """The checkpoint of the target's step: its containers, and the types and sizes of the tensors that come along."""

    tree: Any
    tensors: tuple[tuple[torch.dtype, int], ...]
    global_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The host process can take a window."""


@dataclass(frozen=True, slots=True)
class Released:
    """A slot may be filled again."""

    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A snapshot is durable.

    Attributes:
        global_step: of the run.
        seconds: that writing took.
        bound: largest relative error of parameters or moments; 0 where they are bitwise.
        proven: whether the replayed state was compared with the live digest.
    """

    global_step: int
    seconds: float
    bound: float
    proven: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A snapshot was given up."""

    reason: str
