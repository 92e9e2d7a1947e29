"""What a run's folder holds to rebuild it from: journals of its ranks, checkpoints, snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile

from zo_lightning.checkpoint.journal import Entry, Recovered, read_journal
from zo_lightning.checkpoint.places import CHECKPOINTS, JOURNAL, STORE, rank_folders
from zo_lightning.checkpoint.store import Store
from zo_lightning.errors import ConfigError, ZOError
from zo_lightning.modules.checkpoint import KEY
from zo_lightning.strategies.checkpoint_io import RunCheckpointIO

WITHOUT = "zo_lightning_without"  # in a checkpoint: the steps that it leaves out, so that it is no state of its run


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint file or a snapshot of the store.

    Args:
        step: steps that it holds.
        name: as it is shown.
        load: reads all of it, the tree of a Lightning checkpoint with the live factors' digest; raises ``ZOError``.
    """

    step: int
    name: str
    load: Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as it was recorded.

    Args:
        folder: of the run.
        recovered: the first rank's journal, with what the others have of it.
        saved: checkpoints and snapshots, by step.
        unreadable: checkpoint files that are damaged, each with what is wrong.
    """

    folder: Path
    recovered: Recovered
    saved: tuple[Saved, ...]
    unreadable: Mapping[Path, str]

    @property
    def entries(self) -> Mapping[int, Entry]:
        """Its steps."""
        return self.recovered.entries

    @property
    def num_steps(self) -> int:
        """Steps until the journal's end."""
        return max(self.entries, default=-1) + 1


def read_run(folder: Path, *, start: Path | None = None, newest: bool = False) -> Run:
    """Read a run's journals, and find its checkpoints and snapshots.

    Args:
        folder: of the run.
        start: the checkpoint that the run was forked from, where the folder holds none of its first steps.
        newest: whether its newest step alone is wanted, so that damage before a sound snapshot is no matter.

    Raises:
        ConfigError: if there is no journal.
        JournalError: if it is damaged.
    """
    ranks = rank_folders(folder / JOURNAL)
    if not ranks:
        raise ConfigError(
            f"{folder} has no journal under {JOURNAL}: name the folder of a run that was trained with "
            "`checkpoint=resilient`"
        )
    files = [*([start] if start else []), *sorted((folder / CHECKPOINTS).glob("*.ckpt"))]
    saved, unreadable = _snapshots(folder / STORE), {}
    for path in files:
        try:
            saved += _file(path)
        except ZOError as error:
            unreadable[path] = str(error)
    saved.sort(key=lambda found: found.step)
    snapshot = _newest_sound(saved) if newest else 0
    return Run(
        folder=folder,
        recovered=read_journal(ranks[0], peers=ranks[1:], snapshot=snapshot),
        saved=tuple(saved),
        unreadable=unreadable,
    )


def _newest_sound(saved: Sequence[Saved]) -> int:
    for found in reversed(saved):
        with suppress(ZOError):
            found.load()
            return found.step
    return 0


def _file(path: Path) -> list[Saved]:
    checkpoint = _checkpoint(path)
    if WITHOUT in checkpoint:
        return []
    return [Saved(step=checkpoint[KEY]["bank"]["version"], name=str(path), load=partial(_checkpoint, path))]


def _checkpoint(path: Path) -> dict[str, Any]:
    try:
        checkpoint = RunCheckpointIO().load_checkpoint(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, UnpicklingError, BadZipFile, OSError) as error:  # half of a file, or another kind
        raise ConfigError(f"{path} cannot be read as a checkpoint: {error}") from error
    if KEY not in checkpoint:
        raise ConfigError(f"{path} is not a checkpoint of zo_lightning")
    return checkpoint


def _snapshots(folder: Path) -> list[Saved]:
    if not folder.is_dir():
        return []
    store = Store([folder])
    return [Saved(step=step, name=f"{folder} step {step}", load=partial(_tree, store, step)) for step in store.steps()]


def _tree(store: Store, step: int) -> dict[str, Any]:
    loaded = store.load(step)
    tree: dict[str, Any] = loaded.tree
    return tree | {KEY: tree[KEY] | {"digest": loaded.digest}}
