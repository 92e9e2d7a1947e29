"""When a life ends: seeded moments by the clock, by what the life has said, and by its file operations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

By = Literal["clock", "line", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One SIGKILL.

    Args:
        by: ``clock``: the parent kills at a share ``moment`` of the time that a life takes to its tenth line;
            ``line``: the life kills itself once it has written its line number ``moment``; ``file``: in the middle of
            its file operation number ``moment``, of those on journal and store.
        moment: see above.
    """

    by: By
    moment: float

    def number(self, by: By) -> int | None:
        """The moment of a kill of one kind; None for one of another kind.

        Examples:
            >>> Kill(by="line", moment=3).number("line"), Kill(by="line", moment=3).number("file")
            (3, None)
        """
        return int(self.moment) if self.by == by else None


def kills(seed: int, *, lines: int = 12, operations: int = 40) -> Iterator[Kill]:
    """Moments without end, the same for the same seed.

    Half go by the clock, so that they fall everywhere, into imports and recovery too; the others are placed at moments
    that a clock seldom hits: right before and after a step's acknowledgement, and inside the operations of journal and
    store.

    Args:
        seed: of the moments.
        lines: the last one that a kill may follow.
        operations: the last one that a kill may strike in; 0 where the life itself writes no files.

    Examples:
        >>> next(kills(3)) == next(kills(3))
        True
    """
    chance = random.Random(seed)
    while True:
        yield Kill(by="clock", moment=chance.uniform(0, 2))
        by_line = Kill(by="line", moment=chance.randint(1, lines))
        yield chance.choice((by_line, Kill(by="file", moment=chance.randint(1, operations)))) if operations else by_line
