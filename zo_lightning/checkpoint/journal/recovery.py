"""What a run's journal holds after anything has happened to it: the longest chain of records in all its folders.

Each record names its predecessor's checksum, so records find their places by themselves, in whichever rank's folder and
segment they lie. From the run's beginning on, the chain takes the record that continues it; of several, the one of the
highest incarnation. Bytes that are no record, and records that are not in the chain, are explained or refused:

- a write that was cut short at a file's end is dropped, and said so;
- damage whose steps the chain has from another copy, or a snapshot holds, is said;
- all other damage is refused: steps that were acknowledged are lost, or records lie behind it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zo_lightning.checkpoint.files import Files, LocalFiles
from zo_lightning.checkpoint.journal.record import Entry
from zo_lightning.checkpoint.journal.segment import (
    NONE_BEFORE,
    Defect,
    Identity,
    Place,
    Segment,
    Stored,
    place_of,
    scan,
)
from zo_lightning.errors import JournalError

START: Place = (NONE_BEFORE, 0)  # the place before a run's first record


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A journal as it can be trusted.

    Args:
        entries: by step, in order. A step is missing between two others only where a run went on from a snapshot newer
            than the journal's end (a loss of power without ``fsync``); the snapshot holds it.
        identity: of the run; None for an empty journal.
        problems: what was dropped, found elsewhere or replaced, as sentences with file and offset.
        segments: the files of the first folder.
        chain: the records behind the entries.
    """

    entries: dict[int, Entry]
    identity: Identity | None
    problems: tuple[str, ...]
    segments: tuple[Segment, ...]
    chain: tuple[Stored, ...]


def read_journal(
    folder: Path, *, files: Files | None = None, peers: Sequence[Path] = (), snapshot: int = 0
) -> Recovered:
    """Read a journal without a lock; nothing is written, and its run may go on meanwhile.

    Args:
        folder: of one rank.
        files: where.
        peers: folders of the other ranks, whose records stand in for lost ones.
        snapshot: number of steps in a verified snapshot, so that damage to earlier ones loses nothing.

    Raises:
        JournalError: if acknowledged steps are lost or damaged, naming file and offset.
    """
    files = files or LocalFiles()
    folders = [[*_segments(files, place)] for place in (folder, *peers)]
    segments = [segment for found in folders for segment in found]
    identity = _one_identity(segments)
    after = _by_predecessor(segments)
    chain, linked = _chain(after), _linked(after)
    problems: list[str] = []
    fatal: list[str] = []
    for segment in segments:
        for sentence, resolved in _judged(segment, chain, linked, snapshot):
            (problems if resolved else fatal).append(sentence)
    if fatal:
        raise JournalError("; ".join([*fatal, *problems]) + f". {_WAY_OUT}")
    problems += _not_closed(folders[0])
    return Recovered(
        entries={stored.step: stored.entry for stored in chain},
        identity=identity,
        problems=tuple(problems),
        segments=tuple(folders[0]),
        chain=tuple(chain),
    )


_WAY_OUT = (
    "Put back the file from a copy, or go on from a checkpoint in a new run with `ckpt_path=FILE`. Where only the last "
    "record is damaged, cutting the file there loses that step and those behind it"
)


def _segments(files: Files, folder: Path) -> Iterator[Segment]:
    for name in files.names(folder):
        if place_of(name) is not None:
            yield scan(folder / name, files.read(folder / name))


def _one_identity(segments: Sequence[Segment]) -> Identity | None:
    identity = None
    for segment in segments:
        if segment.header is not None:
            identity = identity or segment.header.identity
            check_identity(segment.header.identity, identity, segment.path)
    return identity


def check_identity(found: Identity, wanted: Identity, path: Path) -> None:
    """Raise ``JournalError`` with everything that differs between a journal's run and another one."""
    differing = [
        f"{name} {getattr(found, name)}, not {getattr(wanted, name)}"
        for name in found.__slots__
        if getattr(found, name) != getattr(wanted, name)
    ]
    if differing:
        raise JournalError(
            f"{path} is the journal of another run: {'; '.join(differing)}. Go on with the settings and the version "
            "that it was written with, or fork from a checkpoint of it with `ckpt_path=FILE`"
        )


def _by_predecessor(segments: Sequence[Segment]) -> Mapping[Place, Sequence[Stored]]:
    after: dict[Place, list[Stored]] = defaultdict(list)
    for segment in segments:
        for stored in segment.records:
            after[stored.before].append(stored)
    return after


def _linked(after: Mapping[Place, Sequence[Stored]]) -> set[Place]:
    """All records that go back to the run's beginning, also those that another has taken the place of."""
    linked: set[Place] = set()
    places = [START]
    while places:
        following = {(stored.step, stored.checksum) for stored in after.get(places.pop(), ())} - linked
        linked |= following
        places += following
    return linked


def _chain(after: Mapping[Place, Sequence[Stored]]) -> list[Stored]:
    chain: list[Stored] = []
    place = START
    while candidates := after.get(place):
        best = max(candidates, key=lambda stored: stored.incarnation)
        rivals = {s.checksum for s in candidates if s.incarnation == best.incarnation}
        if len(rivals) > 1:
            raise JournalError(
                f"step {best.step} is in the journals as two different records of incarnation {best.incarnation}: the "
                "ranks have parted before it. Go on from a checkpoint of an earlier step with `ckpt_path=FILE`"
            )
        chain.append(best)
        place = (best.step, best.checksum)
    return chain


def _judged(segment: Segment, chain: Sequence[Stored], linked: set[Place], snapshot: int) -> Iterator[tuple[str, bool]]:
    """Sentences about what is wrong with a segment, and whether nothing is lost by it."""
    end = max(chain[-1].step if chain else -1, snapshot - 1)
    for defect in segment.defects:
        known = defect.last_step is not None and defect.last_step <= end
        yield _sentence(segment.path, defect, known=known), defect.torn or known
    yield from _astray(segment, chain, linked, snapshot)


def _sentence(path: Path, defect: Defect, *, known: bool) -> str:
    where = f"{path}: {defect.size} bytes at offset {defect.offset}"
    if defect.torn:
        return f"{where} are a write that was cut short, and are dropped"
    steps = "steps that are not known" if defect.step is None else _range(defect.step, defect.last_step)
    return f"{where} are damaged, where {steps} should be; " + (
        "nothing is lost, since another copy or a snapshot has them" if known else "no copy of them is at hand"
    )


def _astray(segment: Segment, chain: Sequence[Stored], linked: set[Place], snapshot: int) -> Iterator[tuple[str, bool]]:
    """Records that the chain has no place for: replaced by a later process, or cut off from it."""
    by_step = {stored.step: stored.checksum for stored in chain}
    newest = max((stored.incarnation for stored in chain), default=0)
    replaced: list[int] = []
    lost: list[int] = []
    for stored in segment.records:
        if by_step.get(stored.step) == stored.checksum:
            continue
        later = (stored.step, stored.checksum) in linked or (
            stored.incarnation < newest and stored.step <= chain[-1].step
        )
        (replaced if later or stored.step < snapshot else lost).append(stored.step)
    if replaced:
        yield (
            f"{segment.path}: {_range(replaced[0], replaced[-1])} do not count: a later process went on before them",
            True,
        )
    if lost:
        yield f"{segment.path}: {_range(lost[0], lost[-1])} do not continue any record that is left", False


def _not_closed(segments: Sequence[Segment]) -> list[str]:
    if not segments or segments[-1].closed or segments[-1].header is None:
        return []
    last = segments[-1]
    end = f"step {last.records[-1].step}" if last.records else "its header"
    return [f"{last.path} ends with {end} and was not closed: its run was killed, goes on, or the file was cut"]


def _range(first: int, last: int | None) -> str:
    return f"step {first}" if last in (None, first) else f"steps {first} to {last}"
