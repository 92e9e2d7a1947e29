"""Checkpoints in one or more places: a crash at any moment leaves the last one, and only sound ones are loaded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import zo_lightning
from zo_lightning.checkpoint.files import Files
from zo_lightning.checkpoint.store.errors import StoreError
from zo_lightning.checkpoint.store.manifest import Manifest
from zo_lightning.checkpoint.store.results import Loaded, Receipt
from zo_lightning.checkpoint.store.shelf import Shelf
from zo_lightning.checkpoint.store.tiers import open_tier
from zo_lightning.checkpoint.store.tree import decode, encode
from zo_lightning.checkpoint.store.verification import Checked, check


class Store:
    """Checkpoints of one run.

    Args:
        tiers: folders or fsspec URLs, the fastest first. Each gets every checkpoint.
        keep: how many verified checkpoints stay in each.
        files: operations of the folders.
    """

    def __init__(
        self,
        tiers: Sequence[str | Path],
        keep: int = 2,
        *,
        files: Files | None = None,
    ) -> None:
        self._shelves = [Shelf(open_tier(tier, files)) for tier in tiers]
        self._keep = keep

    def save(self, step: int, tree: Any, digest: str) -> Receipt:
        """Write a checkpoint to every tier, then let go of those that are too old.

        Args:
            step: completed steps.
            tree: plain containers, numbers, strings and tensors; not changed meanwhile.
            digest: of the live state, for a restore drill to compare with.

        Raises:
            UnsupportedTypeError: if the tree holds anything else.
            StoreError: if no tier took it and gave it back as it is; older checkpoints are as they were.
        """
        start = time.monotonic()
        node, blocks = encode(tree)
        sizes = {name: len(block) for name, block in blocks.items()}
        manifest = Manifest(step=step, digest=digest, code=zo_lightning.__version__, tree=node, blocks=sizes)
        complaints: list[str] = []
        bytes_written, bytes_reused, holders = 0, 0, []
        for shelf in self._shelves:
            try:
                written, reused = shelf.save(manifest, lambda name: bytes(blocks[name]))
            except OSError as error:
                complaints.append(f"{shelf.tier.name} did not take step {step}: {error}")
                continue
            bytes_written, bytes_reused = bytes_written + written, bytes_reused + reused
            if shelf.is_verified(step):
                holders.append(shelf)
            else:
                complaints.append(f"{shelf.tier.name} took step {step} and does not give it back as it was written")
        if not holders:
            raise StoreError(f"step {step} could not be saved. {_sentences(complaints)}")
        complaints += self._retain(holders, step)
        return Receipt(
            step=step,
            bytes_written=bytes_written,
            bytes_reused=bytes_reused,
            seconds=time.monotonic() - start,
            tiers=tuple(shelf.tier.name for shelf in holders),
            complaints=tuple(complaints),
        )

    def load(self, step: int | None = None) -> Loaded:
        """The newest checkpoint that is as it was written, or that of one step.

        Bad files are repaired from other tiers; failing that, an older checkpoint is taken. Both are complained of.

        Args:
            step: the one wanted; no other is taken then.

        Raises:
            StoreError: if there is none; it says what is wrong with each.
        """
        complaints: list[str] = []
        for candidate in reversed(self._steps(complaints)) if step is None else [step]:
            manifest, tree = self._restore(candidate, complaints)
            if manifest is not None:
                return Loaded(step=candidate, tree=tree, digest=manifest.digest, complaints=tuple(complaints))
            complaints.append(f"step {candidate} cannot be restored")
        wanted = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        places = ", ".join(shelf.tier.name for shelf in self._shelves)
        raise StoreError(f"there is {wanted} that can be restored in {places}. {_sentences(complaints)}".strip())

    def catch_up(self) -> tuple[str, ...]:
        """Copy the newest checkpoint to tiers that lack it, since they were away when it was saved.

        Returns:
            A sentence for everything that failed.
        """
        complaints: list[str] = []
        for step in self._steps(complaints)[-1:]:
            for shelf in self._shelves:
                try:
                    if step not in shelf.steps():
                        self._copy(step, shelf, complaints)
                except (OSError, StoreError) as error:
                    complaints.append(f"{shelf.tier.name} still lacks step {step}: {error}")
        return tuple(complaints)

    def steps(self) -> list[int]:
        """Steps that have a manifest in some tier, oldest first; whether they are sound is not looked at."""
        return self._steps([])

    def verify(self) -> list[Checked]:
        """Read back every manifest and every block of every tier; nothing is changed."""
        return [checked for shelf in self._shelves for checked in check(shelf)]

    def _steps(self, complaints: list[str]) -> list[int]:
        found: set[int] = set()
        for shelf in self._shelves:
            try:
                found.update(shelf.steps())
            except OSError as error:
                complaints.append(f"{shelf.tier.name} cannot be listed: {error}")
        return sorted(found)

    def _restore(self, step: int, complaints: list[str]) -> tuple[Manifest | None, Any]:
        held: list[tuple[Shelf, Manifest]] = []
        for shelf in self._shelves:
            try:
                held.append((shelf, shelf.manifest(step)))
            except StoreError as error:
                complaints.append(str(error))
        if any(manifest != held[0][1] for _, manifest in held):
            complaints.append(
                f"step {step} is not the same checkpoint everywhere: that in {held[0][0].tier.name} counts"
            )
        for _, manifest in held:
            holders = [shelf for shelf, other in held if other == manifest]
            try:
                return manifest, decode(manifest.tree, partial(self._block, manifest, holders, complaints))
            except StoreError as error:
                complaints.append(f"step {step} in {holders[0].tier.name}: {error}")
        return None, None

    def _copy(self, step: int, target: Shelf, complaints: list[str]) -> None:
        source = next(shelf for shelf in self._shelves if shelf is not target and step in shelf.steps())
        manifest = source.manifest(step)
        target.save(manifest, partial(self._block, manifest, [source], complaints))

    def _block(self, manifest: Manifest, holders: list[Shelf], complaints: list[str], name: str) -> bytes:
        size, bad = manifest.blocks[name], []
        for shelf in holders + [shelf for shelf in self._shelves if shelf not in holders]:
            try:
                data = shelf.block(name, size)
            except StoreError as error:
                bad.append(shelf)
                if shelf in holders:
                    complaints.append(str(error))
                continue
            complaints += [_repaired(other, shelf, name, data) for other in bad if other in holders]
            return data
        raise StoreError(f"block {name} is sound in no place")

    def _retain(self, shelves: list[Shelf], step: int) -> list[str]:
        complaints = []
        for shelf in shelves:
            try:
                shelf.retain(self._keep, {step})
            except (OSError, StoreError) as error:
                complaints.append(f"old checkpoints in {shelf.tier.name} stay: {error}")
        return complaints


def _repaired(shelf: Shelf, source: Shelf, name: str, data: bytes) -> str:
    try:
        shelf.repair(name, data)
    except OSError as error:
        return f"block {name} in {shelf.tier.name} could not be repaired: {error}"
    return f"block {name} in {shelf.tier.name} was repaired from {source.tier.name}"


def _sentences(complaints: list[str]) -> str:
    return "; ".join(complaints)
