"""A run's folder: what in it is a run to go on with, and where that one begins."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from omegaconf import DictConfig, OmegaConf

from zo_lightning.cli.folder import claimed, newest_checkpoint, resolve_checkpoint
from zo_lightning.cli.supervise import _command
from zo_lightning.errors import ConfigError
from zo_lightning.supervisor import AGAIN


def config(**settings: object) -> DictConfig:
    return OmegaConf.create({"ckpt_path": None, "seed": 1, **settings})


def snapshot(folder: Path, step: int) -> None:
    manifest = folder / "checkpoints" / "store" / "manifests" / f"step-{step:012d}.json"
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text("{}")


def last(folder: Path, step: int) -> Path:
    path = folder / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"global_step": step, "weights": torch.zeros(100)}, path)
    return path


@pytest.mark.parametrize("kept", ["journal/rank0", "store/blocks", "store/manifests"])
def test_folders_without_a_step_are_nothing_to_go_on_from(tmp_path: Path, kept: str):
    (tmp_path / "checkpoints" / kept).mkdir(parents=True)
    with pytest.raises(ConfigError, match="no step in a journal"):
        resolve_checkpoint(config(ckpt_path=str(tmp_path)), tmp_path)
    with claimed(tmp_path, config(), resume=False):
        pass


def test_a_step_in_a_journal_is_something_to_go_on_from(tmp_path: Path):
    (tmp_path / "checkpoints" / "journal" / "rank1").mkdir(parents=True)
    (tmp_path / "checkpoints" / "journal" / "rank1" / "1-1.wal").touch()
    assert resolve_checkpoint(config(ckpt_path=str(tmp_path)), tmp_path) == (None, tmp_path)
    with pytest.raises(ConfigError, match="holds a run already"), claimed(tmp_path, config(), resume=False):
        pass


def test_a_fork_that_has_no_step_yet_is_started_again_from_its_file(tmp_path: Path):
    journal = tmp_path / "checkpoints" / "journal" / "rank0"
    journal.mkdir(parents=True)
    assert "ckpt_path=other.ckpt" in _command(["ckpt_path=other.ckpt"], tmp_path, AGAIN)
    (journal / "1-1.wal").touch()
    again = _command(["ckpt_path=other.ckpt"], tmp_path, AGAIN)
    assert f"ckpt_path='{tmp_path}'" in again and "ckpt_path=other.ckpt" not in again


@pytest.mark.parametrize(("step", "name"), [(7, "store"), (8, "store"), (9, "last.ckpt")])
def test_the_further_one_of_store_and_last_checkpoint_is_taken(tmp_path: Path, step: int, name: str):
    last(tmp_path, step)
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "last.ckpt"
    snapshot(tmp_path, 8)
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoints" / name


def test_a_damaged_last_checkpoint_gives_way_to_the_store(tmp_path: Path):
    snapshot(tmp_path, 8)
    path = last(tmp_path, 9)
    content = path.read_bytes()
    for damaged in (content[:200], content.replace(bytes(100), bytes(99) + b"1", 1), b""):
        path.write_bytes(damaged)
        assert newest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "store"


def test_last_passes_over_a_run_whose_note_cannot_be_read(tmp_path: Path):
    for name, text in {"bad": "{", "other": "{}", "good": json.dumps({"identity": {"seed": 1}})}.items():
        folder = tmp_path / "outputs" / "day" / name
        last(folder, 3)
        (folder / "run.json").write_text(text)
    good = tmp_path / "outputs" / "day" / "good"
    assert resolve_checkpoint(config(ckpt_path="last"), tmp_path) == (good / "checkpoints" / "last.ckpt", good)


def test_a_folder_is_waited_for_where_that_is_asked_for(tmp_path: Path):
    held = FileLock(tmp_path / ".lock", thread_local=False)
    with held, pytest.raises(ConfigError, match="another run"), claimed(tmp_path, config(), resume=False):
        pass
    held.acquire()
    threading.Timer(0.2, held.release).start()
    with claimed(tmp_path, config(), resume=False, patience=60.0):
        assert json.loads((tmp_path / "run.json").read_text())["identity"] == {"seed": 1}
