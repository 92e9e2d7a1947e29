"""The journal under every fault that it promises to survive, and those that it must refuse."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.journals import IDENTITY, FaultyFiles, HeldFiles, entry, segments, written
from zo_lightning.checkpoint.journal import Entry, Journal, Recovered, read_journal
from zo_lightning.checkpoint.journal.record import SHORTEST
from zo_lightning.checkpoint.journal.segment import HEADER_BYTES
from zo_lightning.errors import JournalError, StaleIncarnationError


def same(entries: Mapping[int, Entry], count: int, start: int = 0) -> bool:
    """Whether these are steps ``start`` to ``count``; a NaN is itself, so that texts compare."""
    return repr(dict(entries)) == repr({step: entry(step) for step in range(start, count)})


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def flip_record(path: Path, number: int) -> None:
    flip(path, (HEADER_BYTES + number * SHORTEST + 20) * 8 + 3)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize("fsync", ["none", "overlapped", "sync"])
def test_what_is_appended_is_there_again(tmp_path: Path, fsync: str) -> None:
    journal = Journal(tmp_path, IDENTITY, fsync=fsync)  # type: ignore[arg-type]
    for step in range(7):
        assert repr(journal.append(entry(step))) == repr(entry(step))
    journal.wait_durable()
    assert same(journal.entries, 7) and journal.last_step == 6
    assert journal.durable_step == (-1 if fsync == "none" else 6)
    journal.close()
    journal.close()
    again = Journal(tmp_path, IDENTITY)
    assert same(again.entries, 7) and again.chain == journal.chain and not again.problems
    assert (journal.incarnation, again.incarnation) == (1, 2)
    again.append(entry(7))
    again.close()
    found = read_journal(tmp_path)
    assert same(found.entries, 8) and found.identity == IDENTITY and not found.problems
    assert [path.name for path in segments(tmp_path)] == ["00001-00000.wal", "00002-00000.wal"]


def test_twenty_thousand_steps_take_less_than_1_3_megabytes(tmp_path: Path) -> None:
    written(tmp_path, range(20_000), fsync="none")
    assert sum(path.stat().st_size for path in segments(tmp_path)) <= 1.3e6
    assert len(read_journal(tmp_path).entries) == 20_000


def test_a_full_segment_is_followed_by_another(tmp_path: Path) -> None:
    written(tmp_path, range(10), segment_bytes=HEADER_BYTES + 4 * SHORTEST)
    assert len(segments(tmp_path)) == 3 and same(read_journal(tmp_path).entries, 10)


def test_versions_need_not_be_steps(tmp_path: Path) -> None:
    with_shift = [entry(0), entry(1, shift=3), entry(2, shift=3)]
    journal = Journal(tmp_path, IDENTITY)
    assert [journal.append(step) for step in with_shift] == with_shift
    journal.close()
    assert list(read_journal(tmp_path).entries.values()) == with_shift


def outcome(files: HeldFiles, folder: Path) -> Recovered | None:
    try:
        return read_journal(folder, files=files)
    except JournalError:
        return None


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three segments of two processes."""
    folder = tmp_path_factory.mktemp("small")
    written(folder, range(4), segment_bytes=HEADER_BYTES + 2 * SHORTEST)
    return written(folder, range(4, 7))


def test_no_flipped_bit_passes(small: Path) -> None:
    files = HeldFiles(small)
    last = segments(small)[-1]
    for path in segments(small):
        whole = files.content[path]
        for bit in range(len(whole) * 8):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            files.content[path] = bytes(flipped)
            found = outcome(files, small)
            # Only the mark of an orderly end can be lost without a step.
            assert found is None or (path != last and found.problems and same(found.entries, 7)), (path, bit)
        files.content[path] = whole


def test_no_truncation_passes(small: Path) -> None:
    files = HeldFiles(small)
    for path in segments(small):
        whole = files.content[path]
        for size in range(len(whole)):
            files.content[path] = whole[:size]
            if (found := outcome(files, small)) is not None:
                count = len(found.entries)
                assert same(found.entries, count)
                assert found.problems or count == 7, (path, size)
        files.content[path] = whole


def test_random_tails_are_cut_short_writes_or_refused(small: Path) -> None:
    files, rng = HeldFiles(small), random.Random(1)
    last = segments(small)[-1]
    whole = files.content[last].removesuffix(files.content[last][-SHORTEST:])  # without the orderly end
    for _ in range(2000):
        tail = rng.randbytes(rng.randrange(1, 300))
        files.content[last] = whole + tail
        found = outcome(files, small)
        assert (found is None) == (len(tail) >= SHORTEST)
        assert found is None or (same(found.entries, 7) and found.problems)


@pytest.mark.parametrize("zeros", [1, 64, 4096])
def test_a_file_that_grew_without_its_bytes_was_cut_short(tmp_path: Path, zeros: int) -> None:
    """So do file systems leave it after a loss of power."""
    journal = Journal(tmp_path, IDENTITY)
    journal.append(entry(0))
    (path,) = segments(tmp_path)
    path.write_bytes(path.read_bytes() + bytes(zeros))
    found = read_journal(tmp_path)
    journal.close()
    assert same(found.entries, 1)
    assert f"{path}: {zeros} bytes at offset {HEADER_BYTES + SHORTEST} are a write that was cut short" in str(
        found.problems
    )


def test_a_longer_record_that_was_cut_short_is_dropped(tmp_path: Path) -> None:
    key = entry(1).record.terms[0][0]
    many = replace(entry(1), record=replace(entry(1).record, terms=((key, 0.1),) * 9))
    journal = Journal(tmp_path, IDENTITY)
    journal.append(entry(0))
    journal.append(many)
    journal.close()
    (path,) = segments(tmp_path)
    size = path.stat().st_size - SHORTEST
    for missing in range(1, 64 + 8 * 16):
        cut(path, size - missing)
        found = read_journal(tmp_path)
        assert same(found.entries, 1) and "cut short" in found.problems[0]


def test_a_damaged_last_step_is_refused_unless_a_snapshot_has_it(tmp_path: Path) -> None:
    written(tmp_path, range(5))
    (path,) = segments(tmp_path)
    cut(path, path.stat().st_size - SHORTEST)
    flip_record(path, 4)
    where = f"{path}: 64 bytes at offset {HEADER_BYTES + 4 * SHORTEST} are damaged, where step 4 should be"
    for snapshot in (0, 4):
        with pytest.raises(JournalError, match=f"{where}; no copy"):
            Journal(tmp_path, IDENTITY, snapshot=snapshot)
    journal = Journal(tmp_path, IDENTITY, snapshot=5)
    assert same(journal.entries, 4) and where in journal.problems[0]
    with pytest.raises(JournalError, match="step 6 does not continue the journal, whose last is 3"):
        journal.append(entry(6))
    journal.append(entry(5))
    journal.close()
    assert list(read_journal(tmp_path).entries) == [0, 1, 2, 3, 5]


def test_a_run_goes_on_after_a_gap_that_a_snapshot_fills(tmp_path: Path) -> None:
    """Without fsync a loss of power can leave a snapshot that is newer than the journal."""
    written(tmp_path, range(3))
    with pytest.raises(JournalError, match="does not continue"):
        written(tmp_path, [10])
    written(tmp_path, range(10, 13), snapshot=10)
    written(tmp_path, range(13, 15))
    found = read_journal(tmp_path)
    assert list(found.entries) == [0, 1, 2, 10, 11, 12, 13, 14] and not found.problems
    segments(tmp_path)[0].unlink()
    with pytest.raises(JournalError, match="steps 10 to 12 do not continue any record"):
        read_journal(tmp_path)


def test_a_journal_may_begin_anywhere(tmp_path: Path) -> None:
    written(tmp_path, range(7, 9))
    assert same(read_journal(tmp_path).entries, 9, start=7)


@pytest.fixture
def ranks(tmp_path: Path) -> tuple[Path, Path]:
    return written(tmp_path / "rank0", range(6)), written(tmp_path / "rank1", range(6))


@pytest.mark.parametrize("number", [0, 2, 5])
def test_a_damaged_step_is_taken_from_a_peer(ranks: tuple[Path, Path], number: int) -> None:
    folder, peer = ranks
    cut(segments(folder)[0], HEADER_BYTES + 6 * SHORTEST)
    flip_record(segments(folder)[0], number)
    with pytest.raises(JournalError, match="no copy of them is at hand"):
        Journal(folder, IDENTITY)
    journal = Journal(folder, IDENTITY, peers=[peer])
    journal.append(entry(6))
    journal.close()
    assert f"where step {number} should be; nothing is lost" in journal.problems[0]
    alone = read_journal(folder)  # the copy stays
    assert same(alone.entries, 7) and alone.problems


def test_the_shorter_rank_catches_up(ranks: tuple[Path, Path]) -> None:
    folder, peer = ranks
    cut(segments(folder)[0], HEADER_BYTES + 3 * SHORTEST + 7)
    journals = [Journal(folder, IDENTITY, peers=[peer]), Journal(peer, IDENTITY, peers=[folder])]
    for journal in journals:
        assert same(journal.entries, 6) and journal.incarnation == 2
        journal.append(entry(6))
        journal.close()
    assert journals[0].chain == journals[1].chain
    assert same(read_journal(folder).entries, 7) and same(read_journal(peer).entries, 7)


def test_a_lost_folder_is_filled_from_a_peer(ranks: tuple[Path, Path]) -> None:
    folder, peer = ranks
    segments(folder)[0].unlink()
    Journal(folder, IDENTITY, peers=[peer]).close()
    assert same(read_journal(folder).entries, 6)


def test_two_ranks_mend_each_other(ranks: tuple[Path, Path]) -> None:
    folder, peer = ranks
    flip_record(segments(folder)[0], 1)
    flip_record(segments(peer)[0], 4)
    Journal(folder, IDENTITY, peers=[peer]).close()
    assert same(read_journal(folder).entries, 6)


def test_ranks_that_have_parted_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "rank0", range(3))
    other = Journal(tmp_path / "rank1", IDENTITY)
    for step in (entry(0), entry(1, loss=9.0)):
        other.append(step)
    other.close()
    with pytest.raises(JournalError, match="step 1 is in the journals as two different records"):
        Journal(tmp_path / "rank0", IDENTITY, peers=[tmp_path / "rank1"])


def test_another_run_is_refused_by_what_differs(tmp_path: Path) -> None:
    written(tmp_path, range(2))
    with pytest.raises(JournalError, match=r"another run: seed 42, not 7; code 1\.0, not 2\.0"):
        Journal(tmp_path, replace(IDENTITY, seed=7, code="2.0"))


def test_one_process_at_a_time(tmp_path: Path) -> None:
    journal = Journal(tmp_path, IDENTITY)
    with pytest.raises(JournalError, match="is open in another process"):
        Journal(tmp_path, IDENTITY)
    journal.close()
    Journal(tmp_path, IDENTITY).close()


def steps_of(first: int) -> Iterator[Entry]:
    return (entry(step) for step in range(first, first + 200))


@pytest.mark.parametrize("fsync", ["none", "overlapped", "sync"])
def test_a_process_that_was_replaced_is_stopped(tmp_path: Path, fsync: str) -> None:
    """Where a lock is lost, as on a network's file system: the later process wins, and the earlier one ends."""
    old = Journal(tmp_path, IDENTITY, fsync=fsync)  # type: ignore[arg-type]
    for step in range(3):
        old.append(entry(step))
    (tmp_path / ".lock").unlink()
    new = Journal(tmp_path, IDENTITY)
    new.append(entry(3))
    with pytest.raises(StaleIncarnationError, match="process 2 of this run has taken over"):
        for step in steps_of(3):
            old.append(replace(step, loss=7.0))
    with pytest.raises(StaleIncarnationError):
        old.append(entry(old.last_step + 1))
    new.append(entry(4))
    new.close()
    found = read_journal(tmp_path)
    assert same(found.entries, 5) and "a later process went on before them" in str(found.problems)


def test_two_processes_that_both_have_written_nothing(tmp_path: Path) -> None:
    old = Journal(tmp_path, IDENTITY)
    (tmp_path / ".lock").unlink()
    new = Journal(tmp_path, IDENTITY)
    new.append(entry(0))
    with pytest.raises(StaleIncarnationError, match="another process of this run writes here"):
        old.append(entry(0))
    new.close()


def test_overlapped_waits_for_the_step_before(tmp_path: Path) -> None:
    gate = threading.Event()
    gate.set()
    journal = Journal(tmp_path, IDENTITY, files=FaultyFiles(sync=lambda path: bool(gate.wait()) and None))
    journal.append(entry(0))
    journal.wait_durable()
    gate.clear()
    journal.append(entry(1))  # returns before it is on the disk
    assert journal.durable_step == 0
    blocked = threading.Thread(target=journal.append, args=(entry(2),))
    blocked.start()
    blocked.join(timeout=0.2)
    assert blocked.is_alive() and journal.last_step == 1
    gate.set()
    blocked.join()
    journal.close()
    assert same(read_journal(tmp_path).entries, 3)


def failing_syncs(*numbers: int) -> FaultyFiles:
    """Files whose syncs of these numbers fail."""
    count = iter(range(1 << 30))

    def sync(path: Path) -> None:
        if next(count) in numbers:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    return FaultyFiles(sync=sync)


@pytest.mark.parametrize("fsync", ["overlapped", "sync"])
@pytest.mark.parametrize("number", [1, 3, 6])
def test_a_file_that_cannot_be_synced_is_left(tmp_path: Path, fsync: str, number: int) -> None:
    files = failing_syncs(number)  # 0 is of the header
    journal = Journal(tmp_path, IDENTITY, fsync=fsync, files=files)  # type: ignore[arg-type]
    for step in range(6):
        journal.append(entry(step))
    journal.close()
    first, _ = segments(tmp_path)
    assert files.synced.count(first) == number  # never again after its failure
    data = bytearray(first.read_bytes())
    data[HEADER_BYTES + (number - 1) * SHORTEST :] = bytes(SHORTEST)  # what such a disk may leave
    first.write_bytes(data)
    assert same(read_journal(tmp_path).entries, 6)


def test_a_disk_that_syncs_nothing_ends_the_run(tmp_path: Path) -> None:
    journal = Journal(tmp_path, IDENTITY, fsync="sync", files=failing_syncs(*range(2, 99)))
    journal.append(entry(0))
    for step in (1, 1):
        with pytest.raises(JournalError, match="could not be written to the journal"):
            journal.append(entry(step))
    journal.close()
    assert list(read_journal(tmp_path).entries) in ([0], [0, 1])


def test_steps_whose_file_cannot_be_synced_are_copied_before_the_next(tmp_path: Path) -> None:
    """Else a loss of power could leave a step without the ones before it."""
    written(tmp_path, range(3), fsync="none")
    journal = Journal(tmp_path, IDENTITY, files=failing_syncs(0))
    journal.append(entry(3))
    journal.close()
    segments(tmp_path)[0].unlink()
    assert same(read_journal(tmp_path).entries, 4)


def test_what_is_there_is_synced_before_it_is_continued(tmp_path: Path) -> None:
    written(tmp_path, range(3), fsync="none")
    files = FaultyFiles()
    Journal(tmp_path, IDENTITY, files=files).close()
    assert files.synced == segments(tmp_path)


@pytest.mark.parametrize("fsync", ["none", "overlapped"])
def test_a_full_disk_leaves_every_step_before(tmp_path: Path, fsync: str) -> None:
    for room in range(0, HEADER_BYTES + 4 * SHORTEST, 13):
        folder, left = tmp_path / str(room), [room]

        def write(path: Path, data: bytes, left: list[int] = left) -> int | None:
            left[0] -= len(data)
            return None if left[0] >= 0 else max(left[0] + len(data), 0)

        journal = Journal(folder, IDENTITY, fsync=fsync, files=FaultyFiles(write=write))  # type: ignore[arg-type]
        with pytest.raises(JournalError, match=r"no space left on the disk.*free some, and `ckpt_path=<run folder>`"):
            for step in steps_of(0):
                journal.append(step)
        with pytest.raises(JournalError, match="no space left"):
            journal.append(entry(journal.last_step + 1))
        journal.close()
        count = max(0, (room - HEADER_BYTES) // SHORTEST)
        assert same(journal.entries, count)
        again = Journal(folder, IDENTITY)
        assert same(again.entries, count)
        again.append(entry(count))
        again.close()
        assert same(read_journal(folder).entries, count + 1)


CHILD = """
import sys
from pathlib import Path
from tests.journals import IDENTITY, entry
from zo_lightning.checkpoint.journal import Journal

journal = Journal(Path(sys.argv[1]), IDENTITY, fsync=sys.argv[2], segment_bytes=2048)
while True:
    print(journal.append(entry(journal.last_step + 1)).record.step, flush=True)
"""


@pytest.mark.parametrize("fsync", ["none", "overlapped"])
def test_a_killed_process_has_lost_no_step_that_it_acknowledged(tmp_path: Path, fsync: str) -> None:
    rng = random.Random(fsync)
    for _ in range(4):
        child = subprocess.Popen([sys.executable, "-c", CHILD, tmp_path, fsync], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for _ in range(rng.randrange(1, 200)):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        acknowledged = [int(line) for line in child.communicate()[0].split("\n")[:-1]]
        entries = read_journal(tmp_path).entries
        assert same(entries, len(entries)) and len(entries) > max(acknowledged, default=0)
