"""The bytes of a step: exact both ways, and nothing else passes for them."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journals import IDENTITY, entry
from zo_lightning.checkpoint.journal import Entry
from zo_lightning.checkpoint.journal.record import checksum_of, decode, encode, encode_end, frame, length_of
from zo_lightning.checkpoint.journal.segment import HEADER_BYTES, Header
from zo_lightning.core.types import DirectionKey, StepRecord
from zo_lightning.errors import JournalError

U32 = st.integers(0, (1 << 32) - 1)
FLOATS = st.floats(width=64)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    step, seed, stage = draw(st.integers(0, 1 << 62)), draw(U32), draw(st.integers(1 << 15, 1 << 31))
    first = DirectionKey(seed=seed, step=step, stage=stage, index=draw(st.integers(0, 0xFFFF)))
    further = st.builds(
        DirectionKey,
        seed=st.just(seed),
        step=st.integers(max(0, step - (1 << 32) + 1), step),
        stage=st.integers(stage - (1 << 15), stage + (1 << 15) - 1),
        index=st.integers(0, 0xFFFF),
    )
    keys = [first, *draw(st.lists(further, max_size=5))]
    skipped = draw(st.booleans())
    terms = () if skipped else tuple((key, draw(FLOATS)) for key in keys)
    record = StepRecord(step=step, version=step + 2, lr=draw(FLOATS), terms=terms, skipped=skipped)
    aux = tuple(draw(st.lists(FLOATS, max_size=4)))
    return Entry(record=record, loss=draw(st.floats(width=32)), cursor=draw(st.integers(0, (1 << 64) - 1)), aux=aux)


def bits(numbers: list[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)


@given(entries(), U32, st.integers(0, 0xFFFF))
def test_a_step_comes_back_bit_by_bit(step: Entry, chain: int, incarnation: int) -> None:
    raw = encode(step, incarnation=incarnation, chain=chain)
    found = decode(raw, 0, shift=2)
    assert found is not None and found.entry is not None
    assert (found.chain, found.incarnation, found.checksum) == (chain, incarnation, checksum_of(raw))
    back, was = found.entry.record, step.record
    assert (back.step, back.version, back.skipped) == (was.step, was.version, was.skipped)
    assert [key for key, _ in back.terms] == [key for key, _ in was.terms]
    numbers = [[r.lr, *(c for _, c in r.terms)] for r in (back, was)]
    assert bits([*numbers[0], *found.entry.aux]) == bits([*numbers[1], *step.aux])
    assert found.entry.cursor == step.cursor
    assert bits([found.entry.loss]) == bits([step.loss]) or math.isnan(step.loss)
    assert len(raw) == length_of(len(was.terms), len(step.aux)) == frame(raw, 0)


@given(st.binary(max_size=200))
def test_other_bytes_are_no_record(data: bytes) -> None:
    assert decode(data, 0) is None


def test_every_flipped_bit_of_a_record_shows() -> None:
    records = [encode(entry(step), incarnation=1, chain=9) for step in (3, 4)] + [encode_end(7, incarnation=1, chain=9)]
    for raw in records:
        assert len(raw) == 64 and decode(raw, 0) is not None
        for bit in range(len(raw) * 8):
            flipped = bytearray(raw)
            flipped[bit // 8] ^= 1 << bit % 8
            assert decode(bytes(flipped), 0) is None


def test_a_loss_beyond_float32_is_infinite() -> None:
    found = decode(encode(replace(entry(0), loss=1e300), incarnation=1, chain=0), 0)
    assert found is not None and found.entry is not None and found.entry.loss == math.inf


KEY = DirectionKey(seed=1, step=5, stage=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"terms": ((replace(KEY, step=4), 0.1),)}, "a first term of step 4"),
        ({"terms": ((KEY, 0.1), (replace(KEY, seed=2), 0.1))}, "terms of several seeds"),
        ({"terms": ((KEY, 0.1),) * 5000}, "5000 terms"),
        ({"terms": ((KEY, 0.1),), "skipped": True}, "though it is skipped"),
        ({"terms": ((replace(KEY, seed=1 << 32), 0.1),)}, "cannot hold"),
        ({"terms": ((KEY, 0.1), (replace(KEY, step=6), 0.1))}, "cannot hold"),
        ({"terms": ((KEY, 0.1), (replace(KEY, stage=1 << 15), 0.1))}, "cannot hold"),
    ],
)
def test_what_has_no_form_is_refused(changes: dict[str, object], message: str) -> None:
    record = replace(StepRecord(step=5, version=5, lr=0.1, terms=()), **changes)  # type: ignore[arg-type]
    with pytest.raises(JournalError, match=message):
        encode(Entry(record=record, loss=0.0, cursor=0), incarnation=1, chain=0)


def test_a_header_comes_back_and_every_flipped_bit_of_it_shows() -> None:
    header = Header(identity=IDENTITY, incarnation=3, first=17, follows=16, chain=0xFFFFFFFF, shift=-1)
    data = header.encode()
    assert len(data) == HEADER_BYTES and Header.decode(data) == header
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert Header.decode(bytes(flipped)) is None


def test_an_identity_that_does_not_fit_is_refused() -> None:
    with pytest.raises(JournalError, match="which has 500"):
        Header(identity=replace(IDENTITY, code="x" * 400), incarnation=1, first=0).encode()
