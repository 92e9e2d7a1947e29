"""A segment: one file of the journal, written by one process from its header on.

Its first 512 bytes say whose run it is and which record it continues; they are a disk's sector, so that records of one
term never lie across two of them. Nothing is allocated ahead: then a file's length says how much was written, and a
last record that is whole but wrong is damage, not a write that was cut short.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import google_crc32c

from zo_lightning.checkpoint.journal.record import SHORTEST, STRIDE, Entry, decode, frame
from zo_lightning.errors import JournalError

HEADER_BYTES = 512
_MAGIC = b"ZOWAL\x00\x001"  # the last byte is the format's version
_NAME = re.compile(r"(\d{5})-(\d{5})\.wal")
NONE_BEFORE = -1  # what the first segment of a run continues

Place = tuple[int, int]  # step and checksum of a record


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose steps these are; a run with another one must not go on from them.

    Args:
        method: digest of the method.
        base: digest of the base weights, None without a folder of weights.
        layout: digest of the trainable matrices.
        seed: seed of all directions.
        code: version of the code.
    """

    method: str
    base: str | None
    layout: str
    seed: int
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a segment begins with.

    Args:
        identity: of the run.
        incarnation: of the writer.
        first: its first step.
        follows: step of the record before it, ``NONE_BEFORE`` if there is none. Steps between the two are in the
            snapshot that the writer began from.
        chain: checksum of the record before it, 0 if there is none.
        shift: version minus step, in all its records.
    """

    identity: Identity
    incarnation: int
    first: int
    follows: int = NONE_BEFORE
    chain: int = 0
    shift: int = 0

    def encode(self) -> bytes:
        """The first bytes of the file.

        Raises:
            JournalError: if the identity is too long for them.
        """
        room = HEADER_BYTES - len(_MAGIC) - 4
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()
        if len(text) > room:
            raise JournalError(f"the run's identity takes {len(text)} bytes of a journal's header, which has {room}")
        body = _MAGIC + text.ljust(room)
        return body + google_crc32c.value(body).to_bytes(4, "little")

    @classmethod
    def decode(cls, data: bytes) -> Header | None:
        """The header that ``data`` begins with; None if it is not whole and right."""
        body = data[: HEADER_BYTES - 4]
        right = body.startswith(_MAGIC) and google_crc32c.value(body) == int.from_bytes(
            data[HEADER_BYTES - 4 : HEADER_BYTES], "little"
        )
        if not right:
            return None
        fields = json.loads(body[len(_MAGIC) :])
        return cls(**{**fields, "identity": Identity(**fields["identity"])})


@dataclass(frozen=True, slots=True)
class Stored:
    """A record whose checksum is right, where it was found."""

    step: int
    checksum: int
    entry: Entry
    raw: bytes
    incarnation: int
    shift: int
    before: Place  # of the record that it continues


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """Bytes that are no record. ``torn`` ones were never written whole."""

    offset: int
    size: int
    torn: bool
    step: int | None  # that should stand there
    last_step: int | None  # the highest that may have stood there


@dataclass(slots=True, kw_only=True)
class Segment:
    """What a file of the journal holds."""

    path: Path
    size: int
    header: Header | None
    records: list[Stored] = field(default_factory=list)
    defects: list[Defect] = field(default_factory=list)
    closed: bool = False  # ends with an orderly end


def name_of(incarnation: int, number: int) -> str:
    """File name of a segment.

    Examples:
        >>> name_of(2, 0), place_of("00002-00000.wal")
        ('00002-00000.wal', (2, 0))
    """
    return f"{incarnation:05d}-{number:05d}.wal"


def place_of(name: str) -> tuple[int, int] | None:
    """Incarnation and number of a segment's file name; None for other files."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def scan(path: Path, data: bytes) -> Segment:
    """Every record of a segment whose checksum is right, and what is wrong with the rest."""
    header = Header.decode(data)
    segment = Segment(path=path, size=len(data), header=header)
    if header is None:
        segment.defects.append(_without_header(data))
        return segment
    before, at = (header.follows, header.chain), HEADER_BYTES
    while at < len(data):
        found = decode(data, at, shift=header.shift)
        if found is None:
            after = _next_record(data, at)
            segment.defects.append(_defect(data, at, after, segment))
            at = len(data) if after is None else after
            continue
        length = frame(data, at) or 0
        # Behind a damaged record the chain says what came before.
        predecessor = before if found.chain == before[1] else (found.step - 1, found.chain)
        segment.closed = found.entry is None
        if found.entry is not None:
            raw, shift = data[at : at + length], header.shift
            segment.records.append(
                Stored(found.step, found.checksum, found.entry, raw, found.incarnation, shift, predecessor)
            )
            before = (found.step, found.checksum)
        at += length
    return segment


def _next_record(data: bytes, at: int) -> int | None:
    """Offset of the next record behind a damaged one."""
    places: Iterator[int] = iter(range(at + STRIDE, len(data), STRIDE))
    return next((place for place in places if decode(data, place) is not None), None)


def _without_header(data: bytes) -> Defect:
    """What is wrong with a file that nothing can be read from, and which steps it must have held."""
    torn = len(data) < HEADER_BYTES or not any(data)
    places = range(HEADER_BYTES, len(data), STRIDE)
    steps = [found.step for place in places if (found := decode(data, place)) is not None and found.entry is not None]
    return Defect(
        offset=0,
        size=len(data),
        torn=torn,
        step=min(steps, default=None),
        last_step=max(steps, default=None),
    )


def _defect(data: bytes, at: int, after: int | None, segment: Segment) -> Defect:
    assert segment.header is not None
    last = segment.records[-1] if segment.records else None
    step = segment.header.first if last is None else last.step + 1
    size = (len(data) if after is None else after) - at
    following = decode(data, after) if after is not None else None
    count = max(size // (len(last.raw) if last else SHORTEST), 1)
    return Defect(
        offset=at,
        size=size,
        torn=after is None and _is_torn(data, at),
        step=step,
        last_step=step + count - 1 if following is None else following.step - 1,
    )


def _is_torn(data: bytes, at: int) -> bool:
    """Whether the end of a file is a write that was cut short, by a kill, a full disk or a loss of power.

    The last leaves zeros where the file had grown but its bytes were not on the disk yet.
    """
    left = len(data) - at
    length = frame(data, at)
    return left < SHORTEST or (length is not None and length > left) or not any(data[at:])
