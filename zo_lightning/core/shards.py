"""Tensor-parallel shards: a worker's bank holds a part of each matrix, a checkpoint holds the whole.

Shape suffixes: O rows stacked over all matrices, X anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from zo_lightning.core.bank import check_matrices, spans
from zo_lightning.core.types import Layout, MatrixSpec
from zo_lightning.errors import EngineError

Snapshot = dict[str, Any]


def shard_of(whole: MatrixSpec, rows: int, cols: int, *, rank: int, size: int) -> MatrixSpec:
    """The shard of a matrix that a rank holds, known from its shape.

    Where there are fewer shards than ranks (key-value heads), neighbours hold the same one.

    Args:
        whole: the matrix.
        rows: of the shard.
        cols: of the shard.
        rank: of the worker.
        size: number of workers.

    Raises:
        EngineError: if equal shards of this shape do not make up the matrix.

    Examples:
        >>> k_proj = MatrixSpec(name="k_proj", rows=64, cols=128)
        >>> [shard_of(k_proj, 32, 128, rank=rank, size=4).first_row for rank in range(4)]
        [0, 0, 32, 32]
    """
    if whole.rows % rows or whole.cols % cols or size % (whole.rows // rows) or size % (whole.cols // cols):
        raise EngineError(
            f"{whole.name} has the shape {(whole.rows, whole.cols)}, and each of {size} workers holds {(rows, cols)}"
        )
    return MatrixSpec(
        name=whole.name,
        rows=rows,
        cols=cols,
        first_row=rank * (whole.rows // rows) // size * rows,
        first_col=rank * (whole.cols // cols) // size * cols,
    )


def cut(snapshot: Snapshot, whole: Layout, shard: Layout) -> Snapshot:
    """A shard's part of the snapshot of a whole bank.

    Raises:
        ConfigError: if the snapshot is of another layout.
    """
    check_matrices(snapshot, whole)
    rows = [_rows(matrix) for matrix in shard.matrices]
    cols = [slice(matrix.first_col, matrix.first_col + matrix.cols) for matrix in shard.matrices]
    places = spans(matrix.rows for matrix in whole.matrices)

    def part(left_OX: torch.Tensor) -> torch.Tensor:
        return torch.cat([left_OX[place][own] for place, own in zip(places, rows, strict=True)])

    changed = _map_left(snapshot, lambda parts: part(parts[0]), [snapshot])
    changed["matrices"] = [[matrix.name, matrix.rows, matrix.cols] for matrix in shard.matrices]
    if "merged" in snapshot:
        merged = zip(snapshot["merged"], rows, cols, strict=True)
        changed["merged"] = [weight[own_rows, own_cols] for weight, own_rows, own_cols in merged]
    return changed


def join(snapshots: Sequence[Snapshot], whole: Layout, shards: Sequence[Layout]) -> Snapshot:
    """The snapshot of a whole bank from those of its shards, in any order."""
    places = spans(matrix.rows for matrix in whole.matrices)
    own = [spans(matrix.rows for matrix in shard.matrices) for shard in shards]

    def assemble(lefts: Sequence[torch.Tensor]) -> torch.Tensor:
        joined_OX = lefts[0].new_zeros(lefts[0].shape[1], whole.num_rows).T  # column after column, as the bank has them
        for left_OX, shard, rows in zip(lefts, shards, own, strict=True):
            for matrix, place, here in zip(shard.matrices, places, rows, strict=True):
                joined_OX[place][_rows(matrix)] = left_OX[here]
        return joined_OX

    joined = _map_left(snapshots[0], assemble, snapshots)
    joined["matrices"] = [[matrix.name, matrix.rows, matrix.cols] for matrix in whole.matrices]
    if "merged" in snapshots[0]:
        joined["merged"] = [
            _tiled(
                matrix, [(shard.matrices[i], part["merged"][i]) for shard, part in zip(shards, snapshots, strict=True)]
            )
            for i, matrix in enumerate(whole.matrices)
        ]
    return joined


def _map_left(
    snapshot: Snapshot, change: Callable[[Sequence[torch.Tensor]], torch.Tensor], parts: Sequence[Snapshot]
) -> Snapshot:
    """A snapshot whose left factors, and the update's states of the same height, are made of those of ``parts``."""
    left_shape = (snapshot["left"].shape[0], snapshot["rank"])  # other states, counters, are the same everywhere
    states = [
        {
            name: change([part["state"][slot][name] for part in parts]) if value.shape == left_shape else value
            for name, value in state.items()
        }
        for slot, state in enumerate(snapshot["state"])
    ]
    return {**snapshot, "left": change([part["left"] for part in parts]), "state": states}


def _tiled(matrix: MatrixSpec, tiles: Sequence[tuple[MatrixSpec, torch.Tensor]]) -> torch.Tensor:
    weight = tiles[0][1].new_zeros(matrix.rows, matrix.cols)
    for shard, tile in tiles:
        weight[_rows(shard), shard.first_col : shard.first_col + shard.cols] = tile
    return weight


def _rows(matrix: MatrixSpec) -> slice:
    return slice(matrix.first_row, matrix.first_row + matrix.rows)


def shard_layout(whole: Layout, shapes: Sequence[tuple[int, int]], *, rank: int, size: int) -> Layout:
    """The layout of a worker's shards.

    Args:
        whole: the model's.
        shapes: rows and columns that the worker holds of each matrix.
        rank: of the worker.
        size: number of workers.
    """
    shards = [
        shard_of(matrix, rows, cols, rank=rank, size=size)
        for matrix, (rows, cols) in zip(whole.matrices, shapes, strict=True)
    ]
    return replace(whole, matrices=tuple(shards))
