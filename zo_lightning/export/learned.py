"""What a checkpoint holds, rebuilt without an engine and held against the base it is about to be joined with."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.method import Method
from zo_lightning.core.types import BankSpec, Layout, MatrixSpec
from zo_lightning.errors import ConfigError
from zo_lightning.models import weights_digest
from zo_lightning.modules.checkpoint import KEY, check_method

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The frozen base: where others load it from, its folder here, and the digest of its weights."""

    name: str
    revision: str | None
    folder: Path
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The factors of a checkpoint, and the base weights that a ``merge`` has written, in the layout's order."""

    base: Base
    bank: LowRankBank
    merged: tuple[torch.Tensor, ...] = ()

    @property
    def rank(self) -> int:
        """Rank columns in use."""
        return self.bank.num_columns

    def factors(self) -> Iterator[tuple[MatrixSpec, torch.Tensor, torch.Tensor]]:
        """Each matrix with its left factor [rows, rank] and right factor [cols, rank], float32."""
        bank = self.bank
        for matrix, rows, cols in zip(bank.layout.matrices, bank.row_spans, bank.col_spans, strict=True):
            yield matrix, bank.left_OC[rows], bank.right_IC[cols]

    def about(self) -> dict[str, Any]:
        """Where this comes from, as plain values."""
        return {
            "base": self.base.name,
            "base_revision": self.base.revision,
            "base_digest": self.base.digest,
            "steps": self.bank.version,
            "rank": self.rank,
        }


def read_checkpoint(path: Path, *, name: str, revision: str | None, layout: Layout, method: Method) -> Learned:
    """Read what a checkpoint has learned; its right factors are made anew by the method's direction.

    Args:
        path: the checkpoint.
        name: where others load the base from: a hub name or a folder.
        revision: of a hub name.
        layout: the base's matrices; ``layout.model`` is its folder here.
        method: what the checkpoint was trained with.

    Raises:
        ConfigError: if the file is no checkpoint of ours, if it is of another method or base, or has learned nothing.
    """
    saved = _load(path)
    snapshot = saved["bank"]
    capacity = snapshot["rank"] * max(len(snapshot["slots"]), 1)
    bank = LowRankBank(
        BankSpec(rank=snapshot["rank"], capacity=capacity), layout, direction=method.direction, update=method.update
    )
    bank.load(snapshot)
    if not bank.num_columns and not bank.num_merged:
        raise ConfigError(f"`ckpt_path={path}` has learned nothing yet: train at least one step")
    base = Base(name=name, revision=revision, folder=Path(layout.model), digest=weights_digest(Path(layout.model)))
    _check_base(saved, base)
    check_method(saved["method"], method)
    return Learned(base=base, bank=bank, merged=tuple(snapshot.get("merged", ())))


def _load(path: Path) -> dict[str, Any]:
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:  # a file of another kind, or half of one
        raise ConfigError(f"`ckpt_path={path}` cannot be read as a checkpoint: name another") from error
    if not isinstance(checkpoint, dict) or KEY not in checkpoint:
        raise ConfigError(f"`ckpt_path={path}` is not a checkpoint of zo_lightning")
    saved: dict[str, Any] = checkpoint[KEY]
    return saved


def _check_base(saved: dict[str, Any], base: Base) -> None:
    trained = saved.get("model_digest")
    if trained is None:
        log.warning("the checkpoint names no digest of its base: only the shapes of %s were compared", base.folder)
    elif trained != base.digest:
        raise ConfigError(
            f"the weights in {base.folder} (digest {base.digest[:16]}) are not those that the checkpoint was trained "
            f"on ({trained[:16]}, then in {saved['model']}): set `model.path` to the folder, or `model.revision` to "
            "the revision, of that base"
        )
