"""The checkpoints of one tier, and what is known of them: which blocks have been read back as they were written."""

from __future__ import annotations

from collections.abc import Callable, Collection

from zo_lightning.checkpoint.store.errors import ManifestError, StoreError
from zo_lightning.checkpoint.store.manifest import Manifest, manifest_name, step_of
from zo_lightning.checkpoint.store.packs import name_of
from zo_lightning.checkpoint.store.tiers import BLOCKS, MANIFESTS, Tier

Content = Callable[[str], bytes]


class Shelf:
    """One tier's part of a store.

    Args:
        tier: where.
    """

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self._sound: set[str] = set()

    def steps(self) -> list[int]:
        """Steps with a manifest, oldest first. Raises ``OSError``."""
        return sorted(step for step in map(step_of, self.tier.names(MANIFESTS)) if step is not None)

    def manifest(self, step: int) -> Manifest:
        """The manifest of a step. Raises ``StoreError`` if it is missing or not what was written."""
        name = manifest_name(step)
        try:
            return Manifest.from_bytes(name, self.tier.read(MANIFESTS, name))
        except (OSError, ManifestError) as error:
            raise StoreError(f"{self.tier.name}/{MANIFESTS}/{name}: {error}") from error

    def block(self, name: str, size: int | None = None) -> bytes:
        """A block's content. Raises ``StoreError`` if it is missing or not what was written."""
        path = f"{self.tier.name}/{BLOCKS}/{name}"
        self._sound.discard(name)
        try:
            data = self.tier.read(BLOCKS, name)
        except OSError as error:
            raise StoreError(f"{path}: {error}") from error
        if size not in (None, len(data)):
            raise StoreError(f"{path}: it has {len(data)} bytes, not {size}")
        if name_of(data) != name:
            raise StoreError(f"{path}: its content is not what its name says")
        self._sound.add(name)
        return data

    def save(self, manifest: Manifest, content: Content) -> tuple[int, int]:
        """Write the blocks that are not there, then the manifest.

        Args:
            manifest: of the checkpoint.
            content: a block by its name.

        Returns:
            Bytes written, and bytes of blocks that were there already.

        Raises:
            OSError: if it cannot be written; what was there is as it was.
        """
        written = reused = 0
        with self.tier.writing():
            present = set(self.tier.names(BLOCKS))
            for name, size in manifest.blocks.items():
                if name in present and self._holds(name, size):
                    reused += size
                else:
                    self.put(name, content(name))
                    written += size
            self.tier.settle(BLOCKS)
            data = manifest.to_bytes()
            self.tier.put(MANIFESTS, manifest.name, data)
            self.tier.settle(MANIFESTS)
        return written + len(data), reused

    def put(self, name: str, data: bytes) -> None:
        """Write a block. Raises ``OSError``."""
        self._sound.discard(name)
        self.tier.put(BLOCKS, name, data)

    def repair(self, name: str, data: bytes) -> None:
        """Write a block anew. Raises ``OSError``."""
        with self.tier.writing():
            self.put(name, data)
            self.tier.settle(BLOCKS)

    def retain(self, keep: int, protected: Collection[int]) -> None:
        """Remove what is older than the newest ``keep`` checkpoints that are verified here, and blocks nobody needs.

        Blocks go after the manifests that named them are gone for good, and none goes while a manifest cannot be read.

        Raises:
            OSError: if something cannot be read or removed.
            StoreError: if a manifest that stays cannot be read.
        """
        with self.tier.writing():
            verified, unreadable = 0, None
            needed: set[str] = set()
            for step in reversed(self.steps()):
                if verified >= keep and step not in protected:
                    self.tier.remove(MANIFESTS, manifest_name(step))
                    continue
                try:
                    blocks = self.manifest(step).blocks
                except StoreError as error:
                    unreadable = error
                    continue
                verified += self._hold(blocks)
                needed |= blocks.keys()
            if unreadable:
                raise unreadable
            unneeded = set(self.tier.names(BLOCKS)) - needed
            if unneeded:
                self.tier.settle(MANIFESTS)
            for name in sorted(unneeded):
                self._sound.discard(name)
                self.tier.remove(BLOCKS, name)

    def is_verified(self, step: int) -> bool:
        """Whether manifest and blocks are what was written. A block that was read back since is not read again."""
        try:
            return self._hold(self.manifest(step).blocks)
        except StoreError:
            return False

    def _hold(self, blocks: dict[str, int]) -> bool:
        return all(self._holds(name, size) for name, size in blocks.items())

    def _holds(self, name: str, size: int) -> bool:
        if name not in self._sound:
            try:
                self.block(name, size)
            except StoreError:
                return False
        return True
