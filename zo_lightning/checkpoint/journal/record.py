"""One step as bytes: 64 of them for a step with one term, little endian, a CRC32C over all that stands before it.

========  ====  ========================================================================
offset    type  field
========  ====  ========================================================================
0         u16   magic
2         u16   length of the whole record; it follows from the two counts, so that a flipped bit shows
4         u8    kind: a step, a skipped step, the orderly end of a segment
5         u8    number of aux values
6         u16   incarnation: how many processes have written the run
8         u64   step
16        u64   cursor: training examples handed out, this step's included
24        f64   learning rate
32        u32   seed of every term
36        u32   stage of the first term
40        f64   coefficient of the first term
48        u16   index of the first term
50        u16   number of terms
52        f32   loss
56        16 B  each further term: steps back u32, index u16, stages ahead of the first i16, coefficient f64
..        8 B   each aux value, f64
end - 8   u32   chain: the checksum of the record before
end - 4   u32   checksum
========  ====  ========================================================================
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c

from zo_lightning.core.types import DirectionKey, StepRecord, Term
from zo_lightning.errors import JournalError

MAGIC = 0x4F5A  # "ZO"
STEP, SKIPPED, END = 1, 2, 4
SHORTEST = 64
STRIDE = 8  # every length is a multiple of it
_HEAD = struct.Struct("<HHBBHQQdIIdHHf")
_TERM = struct.Struct("<IHhd")
_TAIL = struct.Struct("<II")
_AUX = struct.Struct("<d")
_FRAME = struct.Struct("<HHBB")
_COUNT = struct.Struct("<H")
_COUNT_AT = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One acknowledged step.

    Args:
        record: what the step changes.
        loss: mean over the step's probes, as float32; NaN for a skipped step.
        cursor: training examples handed out since the run began, this step's included.
        aux: what else an update needs to be repeated.
    """

    record: StepRecord
    loss: float
    cursor: int
    aux: tuple[float, ...] = ()


class Decoded(NamedTuple):
    """A record whose checksum is right; an orderly end has no entry."""

    entry: Entry | None
    step: int
    incarnation: int
    chain: int
    checksum: int


def length_of(num_terms: int, num_aux: int) -> int:
    """Bytes of a record.

    Examples:
        >>> length_of(0, 0), length_of(1, 0), length_of(30, 1)
        (64, 64, 536)
    """
    return SHORTEST + _TERM.size * max(num_terms - 1, 0) + _AUX.size * num_aux


def encode(entry: Entry, *, incarnation: int, chain: int) -> bytes:
    """A step as bytes.

    Args:
        entry: the step.
        incarnation: of the writer.
        chain: checksum of the record before.

    Raises:
        JournalError: if the record has no form for it.

    Examples:
        >>> step = StepRecord(step=3, version=3, lr=0.1, terms=((DirectionKey(seed=1, step=3, stage=0), 0.5),))
        >>> raw = encode(Entry(record=step, loss=2.0, cursor=64), incarnation=1, chain=7)
        >>> len(raw), decode(raw, 0).entry.record == step, decode(raw, 0).chain
        (64, True, 7)
    """
    record, terms = entry.record, entry.record.terms
    first, coefficient = terms[0] if terms else (_NO_KEY, 0.0)
    _check(entry, first)
    try:
        head = _HEAD.pack(
            MAGIC,
            length_of(len(terms), len(entry.aux)),
            SKIPPED if record.skipped else STEP,
            len(entry.aux),
            incarnation,
            record.step,
            entry.cursor,
            record.lr,
            first.seed,
            first.stage,
            coefficient,
            first.index,
            len(terms),
            ctypes.c_float(entry.loss).value,  # infinite beyond float32's range, as torch has it
        )
        further = b"".join(
            _TERM.pack(record.step - key.step, key.index, key.stage - first.stage, c) for key, c in terms[1:]
        )
    except struct.error as error:
        raise JournalError(f"step {record.step} has a number that its journal record cannot hold: {error}") from None
    return _sealed(head + further + b"".join(map(_AUX.pack, entry.aux)), chain)


def encode_end(step: int, *, incarnation: int, chain: int) -> bytes:
    """The orderly end of a segment, before ``step``."""
    return _sealed(_HEAD.pack(MAGIC, SHORTEST, END, 0, incarnation, step, 0, 0.0, 0, 0, 0.0, 0, 0, 0.0), chain)


def frame(data: bytes, at: int) -> int | None:
    """Length that a record at ``at`` claims, if what it claims fits together; the bytes may end before it."""
    if len(data) - at < _HEAD.size:
        return None
    magic, length, kind, num_aux = _FRAME.unpack_from(data, at)
    (num_terms,) = _COUNT.unpack_from(data, at + _COUNT_AT)
    whole = magic == MAGIC and kind in (STEP, SKIPPED, END) and length == length_of(num_terms, num_aux)
    return length if whole else None


def decode(data: bytes, at: int, *, shift: int = 0) -> Decoded | None:
    """The record at an offset; None unless all of it is there and its checksum is right.

    Args:
        data: of a segment.
        at: where the record begins.
        shift: version minus step, which the segment's header holds.
    """
    length = frame(data, at)
    if length is None or at + length > len(data):
        return None
    end = at + length - 4
    chain, checksum = _TAIL.unpack_from(data, end - 4)
    if google_crc32c.value(data[at:end]) != checksum:
        return None
    fields = _HEAD.unpack_from(data, at)
    _, _, kind, num_aux, incarnation, step, cursor, lr, seed, stage, coefficient, index, num_terms, loss = fields
    if kind == END:
        return Decoded(None, step, incarnation, chain, checksum)
    terms: tuple[Term, ...] = ()
    if num_terms:
        terms = ((DirectionKey(seed=seed, step=step, stage=stage, index=index), coefficient),)
    if num_terms > 1:
        terms += tuple(_further(data, at, terms[0][0], num_terms - 1))
    aux_at = end - 4 - _AUX.size * num_aux
    record = StepRecord(step=step, version=step + shift, lr=lr, terms=terms, skipped=kind == SKIPPED)
    aux = struct.unpack_from(f"<{num_aux}d", data, aux_at)
    return Decoded(Entry(record=record, loss=loss, cursor=cursor, aux=aux), step, incarnation, chain, checksum)


def checksum_of(raw: bytes) -> int:
    """The checksum that a whole record ends with."""
    return int.from_bytes(raw[-4:], "little")


_NO_KEY = DirectionKey(seed=0, step=0, stage=0)


def _sealed(body: bytes, chain: int) -> bytes:
    body += chain.to_bytes(4, "little")
    return body + google_crc32c.value(body).to_bytes(4, "little")


def _further(data: bytes, at: int, first: DirectionKey, count: int) -> Iterator[Term]:
    for i in range(count):
        back, index, ahead, coefficient = _TERM.unpack_from(data, at + _HEAD.size + i * _TERM.size)
        key = DirectionKey(seed=first.seed, step=first.step - back, stage=first.stage + ahead, index=index)
        yield key, coefficient


def _check(entry: Entry, first: DirectionKey) -> None:
    record = entry.record
    problem = None
    if record.terms and first.step != record.step:
        problem = f"a first term of step {first.step}"
    elif record.skipped and record.terms:
        problem = "terms, though it is skipped"
    elif any(key.seed != first.seed for key, _ in record.terms):
        problem = "terms of several seeds"
    elif length_of(len(record.terms), len(entry.aux)) > 0xFFFF:
        problem = f"{len(record.terms)} terms"
    if problem:
        raise JournalError(f"step {record.step} has {problem}: its journal record cannot hold that")
