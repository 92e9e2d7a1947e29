"""Every state in which a loss of power can leave a folder, from the trace of what was done in it.

What counts is what the POSIX calls promise, not what one file system does. Without a sync of the file, what was written
since may be missing, there in part, or a hole of zeros; without a sync of the folder, the last creations, renames and
removals in it may be undone, in order. The method is that of ALICE (Pillai et al., OSDI 2014).
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from pathlib import Path

from zo_lightning.drill.trace import (
    Created,
    FolderMade,
    FolderSynced,
    Operation,
    Promised,
    Removed,
    Replaced,
    Synced,
    Trace,
    Written,
)

SECTOR = 512  # bytes that a disk writes together
BY_BYTE = 1024  # writes up to this size are cut after every byte

Option = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Image:
    """A folder after a loss of power.

    Attributes:
        files: content by path under the root; none for a folder.
        promised: what somebody had been told is done.
    """

    files: dict[Path, bytes | None]
    promised: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CrashImages:
    """Images of a trace, each once.

    Attributes:
        images: those that differ.
        states: combinations of what may have become durable, at every point of the trace.
        exhaustive: whether all of them were made; otherwise a sample.
    """

    images: list[Image]
    states: int
    exhaustive: bool


def crash_images(trace: Trace, *, cap: int = 100_000, seed: int = 0) -> CrashImages:
    """The states after a loss of power at any point of a trace.

    Args:
        trace: what was done.
        cap: with more states than this, so many are drawn.
        seed: of the drawing.
    """
    moments = [_Moment(trace, count) for count in range(len(trace.operations) + 1)]
    ends = list(accumulate(moment.states for moment in moments))
    exhaustive = ends[-1] <= cap
    wanted = range(ends[-1]) if exhaustive else sorted(random.Random(seed).sample(range(ends[-1]), cap))
    found: dict[frozenset[tuple[Path, bytes | None]], Image] = {}
    place = 0
    for number in wanted:
        while number >= ends[place]:
            place += 1
        image = moments[place].image(ends[place] - 1 - number)
        found[frozenset(image.files.items())] = image  # the last has been promised most
    return CrashImages(list(found.values()), ends[-1], exhaustive)


def materialise(image: Image, folder: Path) -> None:
    """Make the files of an image in an empty folder."""
    for name, content in sorted(image.files.items()):
        if content is None:
            (folder / name).mkdir(parents=True)
        else:
            (folder / name).write_bytes(content)


@dataclass(slots=True)
class _File:
    data: bytes
    durable: int  # bytes
    lengths: list[tuple[int, int]] = field(default_factory=list)  # an operation, and the length after it

    def options(self) -> list[Option]:
        """What may be there: so many bytes, of which some in the middle are zeros."""
        start, end = self.durable, len(self.data)
        if start == end:
            return [(end, 0, 0)]
        step = 1 if end - start <= BY_BYTE else SECTOR
        edges = {start, min(start + 1, end), max(end - 1, start)}
        sectors = [(max(start, at), min(at + SECTOR, end)) for at in range(start // SECTOR * SECTOR, end, SECTOR)]
        holes = {hole for low, high in sectors for hole in ((low, high), (low, end))}
        cut = [(length, 0, 0) for length in sorted(edges | set(range(start, end, step)) - {end})]
        return [*cut, *((end, low, high) for low, high in sorted(holes)), (end, 0, 0)]

    def content(self, length: int, low: int, high: int) -> bytes:
        return (self.data[:low] + bytes(high - low) + self.data[high:])[:length]


@dataclass(slots=True)
class _Folder:
    changes: list[tuple[int, Operation]] = field(default_factory=list)  # with their places in the trace
    durable: int = 0  # changes

    def options(self) -> list[Option]:
        return [(count,) for count in range(self.durable, len(self.changes) + 1)]


class _Moment:
    """What had been done when the power went, and how much of it was certain."""

    def __init__(self, trace: Trace, count: int) -> None:
        there = [(name, trace.files[name], data) for name, data in trace.before.items()]
        self._before = {name: None if data is None else number for name, number, data in there}
        self._files = {number: _File(data, len(data)) for _, number, data in there if data is not None}
        self._folders: dict[Path, _Folder] = defaultdict(_Folder)
        self._promised: list[str] = []
        for place, operation in enumerate(trace.operations[:count]):
            self._do(place, operation)
        parts: list[_File | _Folder] = [*self._files.values(), *self._folders.values()]
        self._options = [(part, part.options()) for part in parts]
        self.states = prod(len(options) for _, options in self._options)

    def _do(self, place: int, operation: Operation) -> None:
        match operation:
            case Written(number, data):
                file = self._files[number]
                file.data += data
                file.lengths.append((place, len(file.data)))
            case Synced(number, since):
                file = self._files[number]
                file.durable = max([file.durable, *(length for done, length in file.lengths if done < since)])
            case FolderSynced(path, since):
                folder = self._folders[path]
                folder.durable = max(folder.durable, sum(done < since for done, _ in folder.changes))
            case Promised(label):
                self._promised.append(label)
            case Replaced(_, path) | Removed(path) | FolderMade(path):
                self._folders[path.parent].changes.append((place, operation))
            case Created(path, number):
                self._files[number] = _File(b"", 0)
                self._folders[path.parent].changes.append((place, operation))

    def image(self, number: int) -> Image:
        """One of the states."""
        chosen: dict[int, Option] = {}
        for part, options in self._options:
            number, place = divmod(number, len(options))
            chosen[id(part)] = options[place]
        names = dict(self._before)
        for folder in self._folders.values():
            (durable,) = chosen[id(folder)]
            for _, change in folder.changes[:durable]:
                _rename(names, change)
        contents = {number: file.content(*chosen[id(file)]) for number, file in self._files.items()}
        reached = {
            name: None if held is None else contents[held]
            for name, held in names.items()
            if all(names.get(parent, 0) is None for parent in name.parents[:-1])
        }
        return Image(reached, tuple(self._promised))


def _rename(names: dict[Path, int | None], change: Operation) -> None:
    match change:
        case Created(path, number):
            names[path] = number
        case Replaced(source, target):
            names[target] = names.pop(source)
        case Removed(path):
            del names[path]
        case FolderMade(path):
            names[path] = None
