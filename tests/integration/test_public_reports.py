"""One test for each kind of fault that users of other training systems have reported of their checkpoints.

The reports are named by project and number; what is done here is ours.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.stores import ChangedFiles, FailingFiles, Gate, forked, full_disk, kill_at, same, small_tree
from zo_lightning.checkpoint.background import BackgroundSaver, detached_copy
from zo_lightning.checkpoint.files import LocalFiles
from zo_lightning.checkpoint.restore_drill import RestoreDrill
from zo_lightning.checkpoint.store import Store, StoreError
from zo_lightning.checkpoint.store.manifest import manifest_name
from zo_lightning.strategies.checkpoint_io import RunCheckpointIO


def save(store: Store, *steps: int) -> None:
    for step in steps:
        store.save(step, small_tree(step), f"digest {step}")


def flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.fixture
def other_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's temporary folder is on another file system."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system to be the temporary folder")
    monkeypatch.setenv("TMPDIR", str(shared))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert tempfile.gettempdir() == str(shared)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("a small file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("before", [True, False])
def test_a_ckpt_file_is_whole_when_the_temporary_folder_is_elsewhere(tmp_path, monkeypatch, other_device, before):
    """Lightning #19970 and #688: killed while a file came over from another file system, the only good one was torn."""
    path, writer = tmp_path / "last.ckpt", RunCheckpointIO()
    writer.save_checkpoint(small_tree(1), path)
    rename = LocalFiles.replace

    def killed(self, source, target):
        if not before:
            rename(self, source, target)
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(LocalFiles, "replace", killed)
    assert forked(lambda: writer.save_checkpoint(small_tree(2), path)) == -signal.SIGKILL
    assert same(torch.load(path, weights_only=True), small_tree(1 if before else 2))


def test_a_save_that_is_killed_at_any_point_leaves_a_whole_checkpoint(tmp_path, other_device):
    """Lightning #19970, pytorch #76395, KempnerForge #102: killed between data, list of data and pointer."""
    save(Store([tmp_path / "start"]), 1)
    found = []
    for number in range(100):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "start", folder)
        store = Store([folder], keep=1, files=FailingFiles(kill_at(number)))
        ended = forked(partial(save, store, 2))
        loaded = Store([folder]).load()
        assert same(loaded.tree, small_tree(loaded.step)) and loaded.complaints == ()
        found.append(loaded.step)
        save(Store([folder], keep=1), 3)
        assert all(row.steps == (3,) and row.problem is None for row in Store([folder]).verify())
        if ended == 0:
            break
    assert ended == 0 and number > 10 and found == sorted(found) and set(found) == {1, 2}


def test_a_folder_that_cannot_be_written_is_no_success():
    """Lightning #21800: a refused write was swallowed, and the save reported as done."""
    with tempfile.TemporaryDirectory() as parent:
        os.chmod(parent, 0o755)
        folder = Path(parent) / "locked"
        folder.mkdir()
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)

        def work():
            if os.geteuid() == 0:
                os.setuid(65534)  # root may write anywhere
            with pytest.raises(PermissionError):
                RunCheckpointIO().save_checkpoint(small_tree(1), folder / "last.ckpt")
            with pytest.raises(StoreError, match=r"Permission denied.*locked"):
                save(Store([folder / "store"]), 1)

        assert forked(work) == 0
        assert not list(folder.iterdir())


def test_a_slow_save_does_not_mix_two_steps(tmp_path):
    """Lightning #20953: training went on while the weights were being written."""
    gate = Gate()
    saver = BackgroundSaver(Store([tmp_path], files=FailingFiles(gate)))
    weights = torch.zeros(20_000)
    for step in range(2):
        weights += 1
        saver.submit(step, detached_copy({"first": weights, "second": weights}), "")
        assert gate.reached.wait(60)
    weights += 1
    gate.open.set()
    assert saver.close(60)
    for step in range(2):
        tree = Store([tmp_path]).load(step).tree
        assert torch.equal(tree["first"], tree["second"]) and bool((tree["first"] == step + 1).all())


def test_a_change_right_after_the_call_is_not_saved(tmp_path):
    """pytorch #144657: an asynchronous save of CPU tensors saw what was written to them after the call."""
    store = Store([tmp_path])
    saver, tree = BackgroundSaver(store, patience=60), small_tree(1)
    saver.submit(1, detached_copy(tree), "")
    tree["state_dict"]["w"].zero_()
    tree["optimizer_states"][0]["state"].clear()
    assert saver.close(60) and same(store.load().tree, small_tree(1))


def test_no_flipped_bit_and_no_cut_is_accepted(tmp_path, monkeypatch):
    """Lightning #21431: a checkpoint with one flipped bit was loaded without a word."""
    monkeypatch.setattr("zo_lightning.checkpoint.store.tree.INLINE_BYTES", 0)
    files = ChangedFiles()
    store = Store([tmp_path], files=files)
    store.save(1, {"w": torch.arange(16.0), "step": 1}, "digest")
    written = [path for path in sorted(tmp_path.rglob("*")) if path.is_file() and path.name != ".lock"]
    assert len(written) == 2 and store.load().step == 1
    tried = 0
    for path in written:
        data = path.read_bytes()
        for changed in (
            *(flip(data, bit) for bit in range(8 * len(data))),
            *(data[:size] for size in range(len(data))),
            data + b"\n",
        ):
            files.changed = {path: changed}
            with pytest.raises(StoreError, match=path.name):
                store.load()
            tried += 1
    assert tried == sum(9 * path.stat().st_size + 1 for path in written)


def test_a_full_disk_keeps_the_last_checkpoint(tiny_disk):
    """Automodel PR #3390: the pointer to the newest was moved, or emptied, before its data was on the full disk."""
    store = Store([tiny_disk], keep=1)
    save(store, 1)
    with pytest.raises(StoreError, match="No space left on device"):
        store.save(2, {"w": torch.randn(30_000)}, "digest")
    assert store.steps() == [1] and same(store.load().tree, small_tree(1))
    save(store, 3)  # nothing of the failed one is in the way
    assert store.steps() == [3] and store.load().complaints == ()


def test_a_failed_save_does_not_end_the_run(tmp_path, caplog):
    """Megatron-LM #1435: one save that failed ended the job."""
    fault = [full_disk]
    store = Store([tmp_path], files=FailingFiles(lambda operation, path: fault[0](operation, path)))
    saver = BackgroundSaver(store, attempts=2, pause=0.001)
    for step in range(4):
        if step == 2:
            fault[0] = lambda operation, path: None
        assert saver.submit(step, small_tree(step), "") and saver.drain(60)
    assert saver.close(60)
    assert (saver.status().failures, saver.status().saves) == (2, 2) and "No space left" in caplog.text
    assert same(Store([tmp_path]).load().tree, small_tree(3))


def test_a_corrupt_newest_checkpoint_does_not_stop_every_restart(tmp_path):
    """Megatron-LM #5281: the newest was corrupt, nothing checked it or went further back: 44 restarts in a loop."""
    save(Store([tmp_path]), 1, 2)
    path = tmp_path / "manifests" / manifest_name(2)
    path.write_bytes(flip(path.read_bytes(), 99))
    for restart in range(3):
        store = Store([tmp_path])
        loaded = store.load()
        assert loaded.step == restart + 1 and bool(loaded.complaints) == (restart == 0)
        save(store, loaded.step + 1)


def test_each_save_has_the_weights_of_its_step(tmp_path):
    """NeMo-RL #3312: a plan that was cached made every later save write the first weights again."""
    store = Store([tmp_path], keep=9)
    drill = RestoreDrill(store, lambda loaded: hashlib.sha256(loaded.tree["w"].numpy().tobytes()).hexdigest())
    saver, weights = BackgroundSaver(store, drill=drill), torch.zeros(20_000)
    for step in range(5):
        weights += 1
        saver.submit(step, detached_copy({"w": weights}), hashlib.sha256(weights.numpy().tobytes()).hexdigest())
        assert saver.drain(60)
    assert saver.close(60) and saver.status().last_verified_step == 4 and drill.failures == 0
    loaded = [store.load(step) for step in range(5)]
    assert len({one.digest for one in loaded}) == 5
    assert [one.tree["w"][0].item() for one in loaded] == [1, 2, 3, 4, 5]
