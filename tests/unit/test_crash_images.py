"""The states after a loss of power: that the right ones are made, and that a save survives each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.journals import IDENTITY, entry
from tests.stores import same, small_tree
from zo_lightning.checkpoint.files import write_whole
from zo_lightning.checkpoint.journal import Journal, read_journal
from zo_lightning.checkpoint.journal.record import SHORTEST
from zo_lightning.checkpoint.journal.segment import HEADER_BYTES
from zo_lightning.checkpoint.store import Store, StoreError
from zo_lightning.drill.crash_images import crash_images, materialise
from zo_lightning.drill.trace import RecordingFiles
from zo_lightning.errors import JournalError


def contents(trace, name):
    """What a file may hold after a loss of power; none where it may be missing."""
    return {image.files.get(Path(name)) for image in crash_images(trace).images}


def write(files, path, data, *, sync):
    file = files.create(path)
    file.write(data)
    if sync:
        file.sync()
    file.close()


def materialised(images, parent):
    """Each image, and a folder like it."""
    for number, image in enumerate(images.images):
        folder = parent / str(number)
        folder.mkdir()
        materialise(image, folder)
        yield image, folder


@pytest.fixture
def files(tmp_path):
    (tmp_path / "there").write_bytes(b"old")
    return RecordingFiles(tmp_path)


def test_without_a_sync_a_renamed_file_may_be_torn(tmp_path, files):
    write(files, tmp_path / "new", b"new", sync=False)
    files.replace(tmp_path / "new", tmp_path / "there")
    assert contents(files.trace(), "there") == {b"old", b"", b"n", b"ne", b"new", bytes(3)}


def test_without_a_sync_of_the_folder_a_name_may_be_missing(tmp_path, files):
    write(files, tmp_path / "new", b"new", sync=True)
    files.promise("new")
    promised = [image for image in crash_images(files.trace()).images if image.promised]
    assert {image.files.get(Path("new")) for image in promised} == {None, b"new"}
    files.sync_folder(tmp_path)
    files.remove(tmp_path / "there")
    files.promise("gone")
    promised = [image.files for image in crash_images(files.trace()).images if "gone" in image.promised]
    assert promised == [{Path("new"): b"new", Path("there"): b"old"}, {Path("new"): b"new"}]


def test_names_of_a_folder_become_durable_in_order(tmp_path, files):
    for name in ("a", "b"):
        write(files, tmp_path / name, b"", sync=True)
    found = {frozenset(map(str, image.files)) for image in crash_images(files.trace()).images}
    assert found == {frozenset({"there"}), frozenset({"there", "a"}), frozenset({"there", "a", "b"})}


def test_a_file_in_a_folder_that_is_missing_is_missing(tmp_path, files):
    files.make_folder(tmp_path / "x" / "y")
    write_whole(files, tmp_path / "x" / "y" / "file", b"data")
    images = crash_images(files.trace()).images
    assert {} not in [image.files for image in images] and len(images) > 5
    for image in images:
        assert all(parent in image.files for name in image.files for parent in name.parents[:-1])


def test_sectors_may_be_missing_in_the_middle_and_synced_bytes_stay(tmp_path, files):
    file = files.append(tmp_path / "there")
    file.write(b"x" * 2000)
    images = contents(files.trace(), "there")
    assert all(image.startswith(b"old") for image in images)
    assert b"old" + b"x" * 509 + bytes(512) + b"x" * 979 in images and b"old" + bytes(2000) in images
    file.sync()
    file.write(b"y")
    files.promise("x")
    kept = [image.files[Path("there")] for image in crash_images(files.trace()).images if image.promised]
    assert set(kept) == {b"old" + b"x" * 2000, b"old" + b"x" * 2000 + b"\0", b"old" + b"x" * 2000 + b"y"}


def test_a_whole_write_leaves_the_old_or_the_new(tmp_path, files):
    write_whole(files, tmp_path / "there", b"another")
    files.promise("done")
    images = crash_images(files.trace()).images
    assert {image.files[Path("there")] for image in images} == {b"old", b"another"}
    assert {image.files[Path("there")] for image in images if image.promised} == {b"another"}


def test_above_the_cap_a_sample_is_drawn(tmp_path, files):
    write(files, tmp_path / "new", b"x" * 600, sync=False)
    every, some = crash_images(files.trace()), crash_images(files.trace(), cap=50)
    assert every.exhaustive and not some.exhaustive and every.states == some.states > 600
    assert 20 < len(some.images) <= 50
    assert crash_images(files.trace(), cap=50) == some != crash_images(files.trace(), cap=50, seed=1)


@pytest.mark.usefixtures("two_blocks")
def test_every_state_of_a_save_loads_what_was_promised(tmp_path):
    """First save, second, and retention of one: no step is lost that ``save`` has returned, no other tree comes."""
    root = tmp_path / "root"
    root.mkdir()
    files = RecordingFiles(root)
    store = Store([root / "store"], keep=1, files=files)
    for step in (1, 2):
        store.save(step, small_tree(step), f"digest {step}")
        files.promise(str(step))
    images = crash_images(files.trace())
    assert images.exhaustive and len(images.images) > 1000
    ahead = set()
    for image, folder in materialised(images, tmp_path):
        promised = int(image.promised[-1]) if image.promised else 0
        try:
            loaded = Store([folder / "store"]).load()
        except StoreError:
            assert promised == 0
            continue
        assert loaded.step >= promised and loaded.digest == f"digest {loaded.step}"
        assert same(loaded.tree, small_tree(loaded.step))
        ahead.add(loaded.step - promised)
    assert ahead == {0, 1}


def recovered(folder):
    """The steps of a journal, which are the first of the run and as they were written; none if it refuses."""
    try:
        entries = dict(read_journal(folder).entries)
    except JournalError:
        return None
    assert repr(entries) == repr({step: entry(step) for step in range(len(entries))})
    return len(entries)


def journal_images(root, mode, cap):
    """Two processes write five steps, in files of two."""
    root.mkdir()
    files = RecordingFiles(root)
    for steps in (range(3), range(3, 5)):
        journal = Journal(
            root / "journal", IDENTITY, fsync=mode, files=files, segment_bytes=HEADER_BYTES + 2 * SHORTEST
        )
        for step in steps:
            journal.append(entry(step))
            files.promise(str(step + 1))
        journal.close()
    return crash_images(files.trace(), cap=cap)


@pytest.mark.parametrize("mode, promise", [("overlapped", 1), ("sync", 0)])
def test_every_state_of_a_journal_recovers_what_was_promised(tmp_path, mode, promise):
    images = journal_images(tmp_path / "root", mode, cap=100_000)
    assert images.exhaustive and len(images.images) > 1000
    lost = set()
    for image, folder in materialised(images, tmp_path):
        steps = recovered(folder / "journal")
        assert steps is not None
        lost.add(max(0, int(image.promised[-1]) - steps) if image.promised else 0)
    assert lost == set(range(promise + 1))


def test_a_journal_without_syncs_recovers_right_steps_or_refuses(tmp_path):
    images = journal_images(tmp_path / "root", "none", cap=500)
    found = {recovered(folder / "journal") for _, folder in materialised(images, tmp_path)}
    assert 0 in found and len(found) > 3


@pytest.mark.usefixtures("two_blocks")
def test_a_state_after_a_crash_takes_the_next_save(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    files = RecordingFiles(root)
    store = Store([root / "store"], files=files)
    store.save(1, small_tree(1), "")
    store.save(2, small_tree(2), "")
    images = crash_images(files.trace(), cap=40)
    for _, folder in materialised(images, tmp_path):
        store = Store([folder / "store"], keep=1)
        store.save(3, small_tree(3), "")
        assert store.steps() == [3] and all(row.steps == (3,) and not row.problem for row in store.verify())
