"""Gaussian low-rank directions with a lazily refreshed right factor (LoZO, Chen et al. 2024, Alg. 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from zo_lightning.core import rng
from zo_lightning.core.types import DirectionKey, Layout
from zo_lightning.errors import ConfigError

_UNMEASURED = 1 << 15  # index offset of a left factor that no probe has seen


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """``d = scale * U V^T`` with ``U ~ N(0, 1)`` every step and ``V ~ N(0, 1)`` every ``refresh_every`` steps.

    A vector's direction is a dense draw: the first column of its U, to which ``scale`` does not apply.

    Args:
        rank: columns of U and V.
        refresh_every: steps of a stage (nu), over which V stays.
        scale: ``none`` as the released LoZO code, ``1/r`` as its paper, ``1/sqrt(r)`` for unit variance.
        refresh_update: ``paper`` applies the measured direction on every step; ``released`` reproduces
            the released code, which on the first step of a stage updates along an unmeasured U.
        cycle: number of stages after which right factors come round again (None: never).
    """

    rank: int
    refresh_every: int
    scale: Literal["none", "1/r", "1/sqrt(r)"] = "none"
    refresh_update: Literal["paper", "released"] = "paper"
    cycle: int | None = None
    needs: ClassVar[frozenset[str]] = frozenset({"low_rank"})

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"`direction.rank` must be at least 1, not {self.rank}")
        if self.refresh_every < 1:
            raise ConfigError(f"`direction.refresh_every` must be at least 1, not {self.refresh_every}")
        if self.scale not in ("none", "1/r", "1/sqrt(r)"):
            raise ConfigError(f"`direction.scale` must be none, 1/r or 1/sqrt(r), not {self.scale}")
        if self.refresh_update not in ("paper", "released"):
            raise ConfigError(f"`direction.refresh_update` must be paper or released, not {self.refresh_update}")

    def keys(self, *, seed: int, step: int) -> tuple[DirectionKey, ...]:
        """One key; its stage wraps after ``cycle`` stages.

        Examples:
            >>> LowRank(rank=2, refresh_every=50, cycle=4).keys(seed=1, step=210)[0].stage
            0
        """
        stage = step // self.refresh_every
        return (DirectionKey(seed=seed, step=step, stage=stage % self.cycle if self.cycle else stage),)

    def applied_key(self, key: DirectionKey) -> DirectionKey:
        """The measured key, but for ``refresh_update=released`` on the first step of a stage."""
        if self.refresh_update == "released" and key.step % self.refresh_every == 0:
            return replace(key, index=key.index + _UNMEASURED)
        return key

    def left(self, key: DirectionKey, layout: Layout, device: torch.device) -> torch.Tensor:
        """U_OR times the scale, float32 [layout.num_rows, rank]."""
        left_OR = rng.normals(
            key.seed,
            rng.ROLE_LEFT,
            step=key.step,
            index=key.index,
            counts=tuple(matrix.rows * self.rank for matrix in layout.matrices),
            starts=tuple(matrix.first_row * self.rank for matrix in layout.matrices),
            device=device,
        ).view(-1, self.rank)
        factor = {"none": 1.0, "1/r": 1 / self.rank, "1/sqrt(r)": 1 / math.sqrt(self.rank)}[self.scale]
        if not layout.has_vectors:
            return left_OR if factor == 1.0 else left_OR * factor
        vector_O = _vectors(layout, [matrix.rows for matrix in layout.matrices], device)
        left_OR[vector_O, 1:] = 0.0
        return torch.where(vector_O[:, None], left_OR, left_OR * factor)

    def right(self, key: DirectionKey, layout: Layout, device: torch.device) -> torch.Tensor:
        """V_IR, float32 [layout.num_cols, rank]."""
        right_IR = rng.normals(
            key.seed,
            rng.ROLE_RIGHT,
            step=key.stage,
            index=0,
            counts=tuple(matrix.cols * self.rank for matrix in layout.matrices),
            starts=tuple(matrix.first_col * self.rank for matrix in layout.matrices),
            device=device,
        ).view(-1, self.rank)
        if layout.has_vectors:
            vector_I = _vectors(layout, [matrix.cols for matrix in layout.matrices], device)
            right_IR[vector_I] = torch.eye(1, self.rank, device=device)
        return right_IR


def _vectors(layout: Layout, counts: list[int], device: torch.device) -> torch.Tensor:
    """Which of the stacked rows, or columns, belong to vectors."""
    vector = torch.tensor([matrix.vector for matrix in layout.matrices])
    return vector.repeat_interleave(torch.tensor(counts)).to(device)
