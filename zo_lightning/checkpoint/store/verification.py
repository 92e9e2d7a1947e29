"""Everything a tier holds, read back and compared with what was written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zo_lightning.checkpoint.store.errors import StoreError
from zo_lightning.checkpoint.store.manifest import manifest_name
from zo_lightning.checkpoint.store.shelf import Shelf
from zo_lightning.checkpoint.store.tiers import BLOCKS, MANIFESTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One file, a row of a table.

    Attributes:
        tier: where it is.
        file: its path in the tier.
        steps: of the checkpoints that need it.
        size: in bytes; none if it cannot be read.
        problem: a sentence, or none.
    """

    tier: str
    file: str
    steps: tuple[int, ...]
    size: int | None
    problem: str | None


def check(shelf: Shelf) -> Iterator[Checked]:
    """Every manifest and every block of a tier; a tier that cannot be listed is one row."""
    tier = shelf.tier.name
    try:
        steps, present = shelf.steps(), shelf.tier.names(BLOCKS)
    except OSError as error:
        yield Checked(tier=tier, file="", steps=(), size=None, problem=f"{tier} cannot be listed: {error}")
        return
    needed: dict[str, int] = {}
    users: dict[str, list[int]] = {name: [] for name in present}
    for step in steps:
        file = f"{MANIFESTS}/{manifest_name(step)}"
        try:
            manifest = shelf.manifest(step)
        except StoreError as error:
            yield Checked(tier=tier, file=file, steps=(step,), size=None, problem=str(error))
            continue
        yield Checked(tier=tier, file=file, steps=(step,), size=len(manifest.to_bytes()), problem=None)
        needed |= manifest.blocks
        for name in manifest.blocks:
            users.setdefault(name, []).append(step)
    for name in sorted(users):
        yield _check_block(shelf, name, needed.get(name), tuple(users[name]))


def _check_block(shelf: Shelf, name: str, size: int | None, steps: tuple[int, ...]) -> Checked:
    file, found, problem = f"{BLOCKS}/{name}", None, None
    try:
        found = len(shelf.block(name, size))
    except StoreError as error:
        problem = str(error)
    return Checked(tier=shelf.tier.name, file=file, steps=steps, size=found, problem=problem)
