"""Which version a drain's shards are brought to, and whose gradients that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Target = Literal["newest", "median", "oldest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One drain: as many steps as there are shards, and after each of them one shard is captured.

    A version is the number of optimizer steps behind it, and a step is named by the version it makes.

    Attributes:
        shards: how many, S.
        first: version at which shard 0 is captured; shard i is at ``first + i``.
        target: which of the captured versions all shards are brought to.

    Examples:
        >>> window = Window(shards=4, first=10, target="median")
        >>> window.version, [list(window.steps(shard)) for shard in range(4)]
        (12, [[11, 12], [12], [], [13]])
        >>> Window(shards=16).traffic, Window(shards=16, target="median").traffic
        (7.5, 4.0)
    """

    shards: int
    first: int = 0
    target: Target = "newest"

    @property
    def last(self) -> int:
        """Version of the shard that is captured last; the drain is over with it."""
        return self.first + self.shards - 1

    @property
    def version(self) -> int:
        """The version that all shards are brought to."""
        return {"newest": self.last, "median": self.first + self.shards // 2, "oldest": self.first}[self.target]

    @property
    def staleness(self) -> int:
        """Steps that the checkpoint is behind when its last shard is captured."""
        return self.last - self.version

    def captured(self, shard: int) -> int:
        """The version at which a shard is copied."""
        return self.first + shard

    def steps(self, shard: int) -> range:
        """The steps to do on a shard, upwards, or to undo, downwards, in this order."""
        start = self.captured(shard)
        if start <= self.version:
            return range(start + 1, self.version + 1)
        return range(start, self.version, -1)

    def shards_of(self, step: int) -> range:
        """The shards whose gradients of a step are needed: what is to be logged in its post-hook."""
        if step <= self.version:
            return range(max(step - self.first, 0))
        return range(step - self.first, self.shards)

    @property
    def slices(self) -> int:
        """Gradients of one shard and one step that are sent in all."""
        return sum(len(self.steps(shard)) for shard in range(self.shards))

    @property
    def traffic(self) -> float:
        """Slices for each shard: (S-1)/2 with ``newest`` or ``oldest``, floor(S*S/4)/S with ``median``."""
        return self.slices / self.shards
