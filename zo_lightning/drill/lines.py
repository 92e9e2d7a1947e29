"""What a life says of itself, outside the journal: one line of JSON before each question and after each step."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from zo_lightning.drill.killing import kill_self

Did = Literal["begin", "ask", "acknowledge", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that a life did.

    Args:
        did: ``begin`` when training begins, ``ask`` before the backend evaluates, ``acknowledge`` right after
            ``optimizer.step`` returned, ``end`` when training is over.
        step: the step in question, from 1; of ``begin`` and ``end``, how many there are.
        epoch: of the step's examples.
        uids: places of the examples in the training split, as the loader handed them out.
        digest: of everything that training changes, after the step.
        at: seconds since 1970.
    """

    did: Did
    step: int
    epoch: int = 0
    uids: tuple[int, ...] = ()
    digest: str = ""
    at: float = 0.0


class LineWriter:
    """Appends lines to a life's own file; each is one write, so that a kill leaves whole lines.

    Args:
        file: made here.
        last: the number of the line after which the process kills itself; None for none.
    """

    def __init__(self, file: Path, *, last: int | None = None) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._left = last

    def write(self, did: Did, step: int, *, epoch: int = 0, uids: Sequence[int] = (), digest: str = "") -> None:
        """Add one line, with the time."""
        line = Line(did=did, step=step, epoch=epoch, uids=tuple(uids), digest=digest, at=time.time())
        os.write(self._descriptor, json.dumps(asdict(line)).encode() + b"\n")
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                kill_self()


def read_lines(file: Path) -> list[Line]:
    """The whole lines of a life; none for one that died before its first.

    Examples:
        >>> read_lines(Path("there/is/no/such/file"))
        []
    """
    if not file.exists():
        return []
    whole = file.read_text().rpartition("\n")[0]
    rows = [json.loads(row) for row in whole.splitlines()]
    return [Line(**{**row, "uids": tuple(row["uids"])}) for row in rows]
