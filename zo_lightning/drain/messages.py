"""What trainer and host process tell each other. Tensors go through the ring; these are small, but for ``Setup``."""

from __future__ import annotations

import functools
import math
import mmap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from zo_lightning.drain.adamw import Hyper
from zo_lightning.drain.pieces import Piece, cut
from zo_lightning.drain.ring import span
from zo_lightning.drain.window import Target, Window

KEY = "zo_lightning_drain"
"""What a checkpoint holds beside Lightning's own: random state, and bounds of relative errors."""

_NOTE_BYTES = 1 << 20  # for what is no tensor
_RESIDUAL_BYTES = 4  # for each element and step: about 1 is usual, a snapshot that needs more is left out

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
        bitwise: whether a replay forward gives the bits of the steps, by construction.
        folder: of the store.
        mirrors: further places for snapshots.
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
    mirrors: tuple[str, ...]
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
        """Slots that hold so many bytes, or any step's tensors, beside a note."""
        most = max([num_bytes, *(self._span(step) for step in range(self.num_shards))])
        return replace(self, slot_bytes=-(-(most + _NOTE_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE)

    def _span(self, step: int) -> int:
        room = _RESIDUAL_BYTES if self.needs_residuals(step) else 0
        logged = sum(piece.stop - piece.start for _, piece in self.logged(step))
        return span(self.types(step)) + room * logged

    def captured(self, step: int) -> tuple[tuple[int, Piece], ...]:
        """Shard and piece of the state that a step of the window copies."""
        return tuple((step, piece) for piece in self.shards[step])

    def logged(self, step: int) -> tuple[tuple[int, Piece], ...]:
        """Shard and piece of the gradients that a step of the window copies."""
        return tuple((shard, piece) for shard in self.window.shards_of(step) for piece in self.shards[shard])

    @property
    def expects_bits(self) -> bool:
        """Whether a finished snapshot must have the bits of the live state."""
        return self.bitwise and (self.target == "newest" or self.rollback == "residuals")

    def needs_residuals(self, step: int) -> bool:
        """Whether a step of the window is undone by residuals."""
        return self.rollback == "residuals" and step > self.window.version

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
        residuals: bytes of each piece whose gradient comes along, behind the other tensors, to undo the step exactly.
    """

    step: int
    hypers: tuple[Hyper, ...]
    clip: float
    digest: str | None = None
    residuals: tuple[int, ...] = ()


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
class Report:
    """What became of the windows so far.

    Attributes:
        refused: given up: the replay has not the live bits, or a rollback's bound is over the tolerance.
        proven: replayed to the very digest of the live state.
        saves: in the store.
        failures: not saved, after all attempts.
        dropped: not saved, since a newer one came first.
        failed_drills: snapshots that were read back and are not what was saved.
        saved_step: the newest in the store; none yet.
        verified_step: the newest that was read back and found to be what was saved; none yet.
        bound: of the newest one's relative errors, the largest; 0 where it has the live bits.
        problem: why the last one was refused.
        seconds: spent in saves that succeeded.
    """

    refused: int = 0
    proven: int = 0
    saves: int = 0
    failures: int = 0
    dropped: int = 0
    failed_drills: int = 0
    saved_step: int | None = None
    verified_step: int | None = None
    bound: float = 0.0
    problem: str = ""
    seconds: float = 0.0

    @property
    def done(self) -> int:
        """Windows of which nothing more is to come."""
        return self.refused + self.saves + self.failures + self.dropped


def exactness(bound: float) -> str:
    """A snapshot's largest relative error, for a person.

    Examples:
        >>> exactness(0.0), exactness(1.1e-6), exactness(float("nan"))
        ('to the bit', 'relative error at most 1.1e-06', 'close, by how much is not known')
    """
    if math.isnan(bound):
        return "close, by how much is not known"
    return f"relative error at most {bound:.1e}" if bound else "to the bit"
