"""The command line in tests: a tiny model, in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from zo_lightning.config import register

MODEL = [
    "model=tiny-llama",
    "backend=dense",
    "scheduler=constant",
    "update.lr=1e-4",
    "task.num_train=40",
    "task.num_dev=16",
    "task.num_test=32",
]
TINY = [
    *MODEL,
    "trainer.max_steps=6",
    "trainer.val_check_interval=null",
    "trainer.check_val_every_n_epoch=1",
    "checkpoint.every_n_steps=2",
]
Compose = Callable[..., DictConfig]
ROOT = os.fspath(Path(__file__).parents[1])


def bank(folder: Path, name: str = "last") -> dict[str, Any]:
    """The factors in a checkpoint of a run's folder."""
    saved = torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)
    return saved["zo_lightning"]["bank"]


def message(capsys: pytest.CaptureFixture[str], call: Callable[[], object]) -> str:
    """What a refused command prints."""
    with pytest.raises(SystemExit) as stop:
        call()
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert "Traceback" not in printed, printed
    return printed


def composer(root: Path, settings: Sequence[str]) -> Compose:
    """Composes runs of the settings whose folders are under ``root``."""

    def compose_run(*overrides: str, folder: str = "run", name: str = "train", tiny: bool = True) -> DictConfig:
        register()
        with initialize_config_module("zo_lightning.conf", version_base="1.3"):
            paths = [f"paths.root={root}", f"paths.output_dir={root / folder}"]
            return compose(name, [*(settings if tiny else []), *paths, *overrides])

    return compose_run


def start(
    *arguments: str, cwd: Path, module: str = "zo_lightning.cli.train", launcher: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """A command as a user types it."""
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", module, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"COLUMNS": "120"} | ({"PYTHONPATH": ROOT} if module.startswith("tests.") else {}),
    )


def wait_for(happened: Callable[[], bool], run: subprocess.Popen[str], seconds: float = 120) -> None:
    """Wait until something has happened, the command has ended, or time is up."""
    deadline = time.monotonic() + seconds
    while not happened() and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
