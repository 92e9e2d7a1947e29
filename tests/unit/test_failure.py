"""Failures on purpose: when they strike, that they are written down first, and what a disk does to bytes."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from zo_lightning.checkpoint.files import LocalFiles, write_whole
from zo_lightning.errors import ConfigError
from zo_lightning.failure import (
    LEDGER,
    BitFlip,
    CrossDeviceTmp,
    DiskFull,
    Failures,
    FaultyFiles,
    Hang,
    Kill,
    NanLoss,
    Poisson,
    SlowDisk,
    SyncError,
    TornWrite,
    files_for,
)


def struck(folder: Path) -> list[str]:
    return [json.loads(line)["failure"] for line in (folder / LEDGER).read_text().splitlines()]


def steps(failures: Failures, number: int) -> list[int]:
    """Steps of the run at which its one failure strikes."""
    found = []
    for failures.step in range(number):
        if failures.strikes(failures.of_process[0]):
            found.append(failures.step)
    return found


def test_a_failure_strikes_once_in_a_run_also_after_a_restart(tmp_path: Path):
    assert steps(Failures([Hang(step=3)], tmp_path), 6) == [3]
    assert steps(Failures([Hang(step=3)], tmp_path), 6) == []
    assert struck(tmp_path) == ["hang"]


def test_a_step_is_drawn_with_the_seed(tmp_path: Path):
    drawn = [Hang(seed=seed, last_step=1000).trigger.step for seed in range(5)]
    assert drawn == [Hang(seed=seed, last_step=1000).trigger.step for seed in range(5)] and len(set(drawn)) == 5
    assert Kill(seed=1, last_step=1000).trigger != Hang(seed=1, last_step=1000).trigger


def test_poisson_strikes_at_its_rate_and_never_twice_at_a_step(tmp_path: Path):
    found = steps(Failures([Poisson(per_step=0.1, seed=3)], tmp_path), 1000)
    assert 60 < len(found) < 140
    assert steps(Failures([Poisson(per_step=0.1, seed=3)], tmp_path), 1000) == []
    gaps = [Poisson(per_second=2.0, seed=3).gap(number) for number in range(1000)]
    assert 0.4 < sum(gap for gap in gaps if gap) / 1000 < 0.6


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Kill(step=3, seconds=1.0), "failure.kill.step` and `failure.kill.seconds"),
        (lambda: Hang(last_step=None), "failure.hang.step"),
        (lambda: TornWrite(last_step=-1), "failure.torn_write.step"),
        (lambda: Poisson(), "per_step"),
        (lambda: Failures([CrossDeviceTmp(folder="/nowhere")], Path("/")), "failure.cross_device_tmp.folder"),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(make, named: str):
    with pytest.raises(ConfigError, match=named):
        make()


def test_without_failures_of_disks_the_files_are_the_systems_own(tmp_path: Path):
    assert type(files_for(None)) is LocalFiles
    assert type(files_for(Failures([Kill(step=1)], tmp_path))) is LocalFiles
    assert type(files_for(Failures([Kill(byte=1)], tmp_path))) is FaultyFiles


def written(folder: Path, *faults, pieces: int = 8) -> tuple[bytes, list[int]]:
    """Write pieces of 100 bytes through the faults: what is on the disk, and the errors."""
    failures = Failures(faults, folder)
    errors = []
    file = FaultyFiles(failures).create(folder / "file")
    for number in range(pieces):
        try:
            file.write(bytes([number]) * 100)
            file.sync()
        except OSError as error:
            errors.append(error.errno or 0)
    file.close()
    return (folder / "file").read_bytes(), errors


def test_a_flipped_bit_is_one_bit_and_nobody_says_so(tmp_path: Path):
    content, errors = written(tmp_path, BitFlip(byte=350))
    expected = b"".join(bytes([number]) * 100 for number in range(8))
    (place,) = [i for i, (one, two) in enumerate(zip(content, expected, strict=True)) if one != two]
    assert 300 <= place < 400 and (content[place] ^ expected[place]).bit_count() == 1 and not errors


def test_a_full_disk_takes_a_part_and_has_space_again_later(tmp_path: Path):
    content, errors = written(tmp_path, DiskFull(byte=250, writes=2))
    assert errors == [errno.ENOSPC] * 2 and len(content) == 800 - 2 * 50
    assert struck(tmp_path) == ["disk_full"]


def test_threads_that_write_share_the_strikes_and_know_their_bytes(tmp_path: Path):
    failures = Failures([DiskFull(byte=0, writes=500)], tmp_path)
    files, starts = FaultyFiles(failures), []

    def write(name: str) -> int:
        file, struck = files.create(tmp_path / name), 0
        for _ in range(200):
            starts.append(failures.count(1))
            try:
                file.write(b"1")
            except OSError:
                struck += 1
        file.close()
        return struck

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(write, "abcd")) == 500
    assert failures.num_bytes == 1600 and len(set(starts)) == 800


def test_a_full_disk_leaves_a_whole_file_as_it_was(tmp_path: Path):
    write_whole(LocalFiles(), tmp_path / "whole", b"old")
    files = FaultyFiles(Failures([DiskFull(byte=0, writes=1)], tmp_path))
    with pytest.raises(OSError, match="No space left"):
        write_whole(files, tmp_path / "whole", b"new")
    assert (tmp_path / "whole").read_bytes() == b"old"
    write_whole(files, tmp_path / "whole", b"new")
    assert (tmp_path / "whole").read_bytes() == b"new"


def test_a_sync_fails_once(tmp_path: Path):
    content, errors = written(tmp_path, SyncError(byte=300))
    assert errors == [errno.EIO] and len(content) == 800


def test_a_slow_disk_is_slow_in_every_process_and_goes_with_others(tmp_path: Path):
    for _ in range(2):
        failures = Failures([SlowDisk(bytes_per_second=1e9, latency=0.0), DiskFull(byte=0, writes=1)], tmp_path)
        file = FaultyFiles(failures).create(tmp_path / "file")
        if struck_before := (tmp_path / LEDGER).exists():
            file.write(b"1234")
        else:
            with pytest.raises(OSError, match="No space left"):
                file.write(b"1234")
        assert failures.strikes(failures.of_files[0])
        file.close()
        (tmp_path / "file").unlink()
    assert struck_before and sorted(struck(tmp_path)) == ["disk_full", "slow_disk"]


@pytest.mark.parametrize(("fault", "least", "most"), [("Kill(byte=250)", 250, 250), ("TornWrite(byte=250)", 200, 299)])
def test_a_kill_in_a_write_leaves_a_part_of_it(tmp_path: Path, fault: str, least: int, most: int):
    code = f"""
from pathlib import Path
from zo_lightning.failure import *
file = FaultyFiles(Failures([{fault}], Path("."))).create(Path("file"))
for number in range(8):
    file.write(bytes(100))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert least <= len((tmp_path / "file").read_bytes()) <= most
    assert len(struck(tmp_path)) == 1


def test_losses_are_not_a_number_for_as_many_steps_as_asked(small_layout, small_examples):
    from tests.integration.conftest import Run

    run = Run(small_layout, small_examples, None)
    module = run.open_module()
    NanLoss(step=0, count=2).strike(module.backend)
    skipped = fit_and_count(run, module)
    assert skipped == 2 and module.backend.version == 6


def fit_and_count(run, module) -> int:
    trainer = run.trainer(max_steps=6)
    trainer.fit(module, run.data())
    return int(trainer.optimizers[0].param_groups[0]["num_skipped"])
