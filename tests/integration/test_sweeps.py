"""Sweeps: jobs that fail alone, launchers and sweepers of other packages, and what a finished job leaves behind."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from hydra import compose, initialize_config_module

from tests.command import MODEL, start
from zo_lightning.backends.dense import DenseBackend
from zo_lightning.cli import train as zo_train
from zo_lightning.config import register

TINY = [*MODEL, "trainer.max_steps=2", "trainer.val_check_interval=2", "callbacks.progress_bar=null"]


def start_sweep(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """``zo-train -m``; an argument replaces the one of the same key."""
    given = {argument.split("=")[0] for argument in arguments}
    searched = {"update.lr"} if "sweep=optuna_lr" in arguments else set()
    kept = [o for o in TINY if o.split("=")[0] not in given | searched]
    return start("-m", *kept, f"hydra.sweep.dir={cwd / 'sweep'}", *arguments, cwd=cwd)


def sweep(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Exit code and output of a whole sweep."""
    run = start_sweep(*arguments, cwd=cwd)
    printed, _ = run.communicate(timeout=250)
    return run.returncode, printed


def done(cwd: Path) -> list[str]:
    return sorted(path.parent.name for path in (cwd / "sweep").glob("*/results.json"))


def test_a_bad_job_fails_alone_and_says_why(tmp_path: Path):
    """Hydra #2284: one that the user can mend, and one by an unexpected error."""
    unexpected = "{_target_:lightning.pytorch.callbacks.Nowhere}"
    code, printed = sweep("direction.rank=0,1", f"callbacks.progress_bar=null,{unexpected}", cwd=tmp_path)
    folder = tmp_path / "sweep"
    assert code == 2, printed
    assert done(tmp_path) == ["2"]
    first, last = (yaml.safe_load((folder / job / "FAILED").read_text()) for job in ("0", "3"))
    assert "direction.rank=0" in first["overrides"] and "callbacks.progress_bar=null" in first["overrides"]
    assert first["error"] == "ConfigError" and "`direction.rank`" in first["message"]
    assert "traceback" not in first
    assert "Nowhere" in last["message"] and "Traceback" in last["traceback"]
    for job in ("0", "3"):
        assert "Traceback" in (folder / job / "train.log").read_text()
    assert "Traceback" not in printed
    for words in ("job 0 failed: ConfigError", "job 3 failed: ", "2 *"):
        assert words in printed
    code, printed = sweep("seed=1,2", cwd=tmp_path)
    assert code == 2 and "holds a sweep already" in printed


def test_optuna_is_told_the_optimized_metric_by_processes_of_joblib(tmp_path: Path):
    search = ["sweep=optuna_lr", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=2", "optimized_metric=test/loss"]
    tiny = [o for o in TINY if not o.startswith("update.lr")]
    command = [sys.executable, "-m", "zo_lightning.cli.train", "-m", *tiny, *search, "hydra/launcher=joblib"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert run.returncode == 0, run.stderr
    (folder,) = (tmp_path / "multirun").glob("*/*")  # the workers have other process ids
    losses = {}
    for job in ("0", "1"):
        results = json.loads((folder / job / "results.json").read_text())
        assert results["optimized_metric"] == {"name": "test/loss", "value": results["after"]["loss"]}
        overrides = dict(
            o.split("=", 1) for o in yaml.safe_load((folder / job / ".hydra" / "overrides.yaml").read_text())
        )
        losses[results["after"]["loss"]] = float(overrides["update.lr"])
    best = yaml.safe_load((folder / "optimization_results.yaml").read_text())
    assert best["best_value"] == min(losses)
    assert best["best_params"]["update.lr"] == losses[min(losses)]


@pytest.mark.slow
def test_a_failed_job_is_a_failed_trial(tmp_path: Path):
    """With the seed of the file one of the three trials has rank 0."""
    code, printed = sweep("sweep=optuna_lr", "hydra.sweeper.n_trials=3", "direction.rank=0,1", cwd=tmp_path)
    assert code == 2, printed
    failed = [path.parent.name for path in (tmp_path / "sweep").glob("*/FAILED")]
    assert len(failed) == 1 and len(done(tmp_path)) == 2
    best = yaml.safe_load((tmp_path / "sweep" / "optimization_results.yaml").read_text())
    assert best["best_params"]["direction.rank"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_launchers_with_processes_go_on_after_a_bad_job(tmp_path: Path, launcher: str):
    code, printed = sweep(f"hydra/launcher={launcher}", "direction.rank=0,1", cwd=tmp_path)
    assert code == 2, printed
    assert done(tmp_path) == ["1"]
    assert (tmp_path / "sweep" / "0" / "FAILED").is_file()
    assert "job 0 failed: ConfigError" in printed


def is_training(metrics: Path) -> bool:
    return metrics.is_file() and "train/loss" in metrics.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_the_sweep(tmp_path: Path, sent: signal.Signals, code: int):
    run = start_sweep("seed=1,2", "trainer.max_steps=100000", cwd=tmp_path)
    metrics = tmp_path / "sweep" / "0" / "csv" / "version_0" / "metrics.csv"
    deadline = time.monotonic() + 120
    while not is_training(metrics) and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    run.send_signal(sent)
    try:
        printed, _ = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == code, printed
    assert (tmp_path / "sweep" / "0" / "checkpoints" / "last.ckpt").is_file()
    assert not (tmp_path / "sweep" / "0" / "FAILED").exists()
    assert not (tmp_path / "sweep" / "1").exists()


def alive() -> list[object]:
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is DenseBackend]


def children() -> list[str]:
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()


def test_a_finished_job_leaves_no_engine_and_no_process(tmp_path: Path):
    before = len(alive()), children()
    numbers = []
    for seed in range(4):
        register()
        with initialize_config_module("zo_lightning.conf", version_base="1.3"):
            paths = [f"paths.root={tmp_path}", f"paths.output_dir={tmp_path / str(seed)}"]
            config = compose("train", [*TINY, *paths, f"seed={seed}", "extras.print_config=false"])
        zo_train.run(config)
        assert (len(alive()), children()) == before
        numbers.append(sum(t.numel() for t in gc.get_objects() if isinstance(t, torch.Tensor)))
    assert numbers[-1] <= numbers[0]


@pytest.mark.slow
@pytest.mark.vllm
def test_one_engine_after_another_in_one_process(tmp_path: Path):
    code, printed = sweep("seed=1,2", "backend=vllm", cwd=tmp_path)
    assert code == 0, printed
    assert done(tmp_path) == ["0", "1"]


@pytest.mark.parametrize("argument", ["hydra/launcher=ray", "hydra/launcher=joblib", "sweep=optuna_lr"])
def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch, capsys, argument: str):
    monkeypatch.setitem(sys.modules, "hydra_plugins", None)
    monkeypatch.setattr(sys, "argv", ["zo-train", "-m", argument])
    with pytest.raises(SystemExit) as stop:
        zo_train.main()
    assert stop.value.code == 2
    assert "pip install hydra-" in capsys.readouterr().err


def test_a_sweep_without_m_is_told(tmp_path: Path):
    command = [
        sys.executable,
        "-m",
        "zo_lightning.cli.train",
        *TINY,
        "sweep=lr_grid",
        f"hydra.run.dir={tmp_path / 'x'}",
    ]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert run.returncode == 2 and "add `-m`" in run.stderr
