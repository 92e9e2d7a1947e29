"""Loggers by configuration, with the files that they write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.command import MODEL, Compose, composer
from tests.wandb_files import offline_runs
from zo_lightning.cli import eval as zo_eval
from zo_lightning.cli import train as zo_train
from zo_lightning.cli.config_tree import show_config

TINY = [*MODEL, "trainer.val_check_interval=2", "extras.print_config=false", "callbacks.progress_bar=null"]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")


@pytest.fixture
def composed(tmp_path: Path) -> Compose:
    """A run's configuration with its folder under ``tmp_path``."""
    return composer(tmp_path, TINY)


def sweep(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zo_lightning.cli.train", "-m", *TINY, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200)


def test_jobs_of_a_sweep_are_wandb_runs_of_their_own(composed: Compose, tmp_path: Path):
    """wandb #1314, Lightning #5212: without an end the second job writes into the first one's run."""
    folder = tmp_path / "day" / "sweep"
    done = sweep("logger=many", "seed=1,2", "trainer.max_steps=2", f"hydra.sweep.dir={folder}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    jobs = [offline_runs(folder / str(number)) for number in range(2)]
    assert [len(runs) for runs in jobs] == [1, 1]
    (first,), (second,) = jobs
    assert first.run.run_id != second.run.run_id
    assert {first.run.run_group, second.run.run_group} == {"day_sweep"}
    assert [first.run.display_name, second.run.display_name] == ["0", "1"]
    for number, found in enumerate((first, second)):
        assert json.loads((folder / str(number) / "run.json").read_text())["id"] == found.run.run_id
        assert found.config["seed"] == number + 1
        assert found.steps("train/loss") == [0, 1]
        assert found.exit_code == 0
        assert list((folder / str(number) / "tensorboard").glob("events.out.tfevents.*"))
        assert (folder / str(number) / "csv" / "version_0" / "metrics.csv").is_file()

    # a job that goes on, alone, is the same W&B run of the same group
    zo_train.run(composed("logger=wandb", "seed=1", "trainer.max_steps=4", f"ckpt_path={folder / '0'}"))
    first, again = offline_runs(folder / "0")
    assert again.run.run_id == first.run.run_id
    assert (again.run.run_group, again.run.display_name) == ("day_sweep", "0")
    for metric in ("train/loss", "test/loss"):
        assert max(first.steps(metric)) <= min(again.steps(metric))
    assert again.steps("train/loss") == [2, 3]


def test_wandb_has_the_resolved_configuration_the_card_and_the_curve(composed: Compose, tmp_path: Path):
    zo_train.run(composed("logger=many", "extras.tags=[short,paper]", "trainer.max_steps=2"))
    (found,) = offline_runs(tmp_path / "run")
    assert found.config["trainer"]["default_root_dir"] == str(tmp_path / "run")
    assert found.config["bank"] == {"capacity": None, "policy": "cyclic"}
    assert found.config["logger"]["wandb"]["id"] == found.run.run_id
    assert "${" not in json.dumps(found.config)
    assert list(found.run.tags) == ["short", "paper"]
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    for key in ("before", "after", "steps", "base_digest", "optimized_metric"):
        assert found.summary[key] == results[key]
    (curve,) = (found.folder / "files" / "media" / "images").glob("curve_*.png")
    assert curve.read_bytes() == (tmp_path / "run" / "curve.png").read_bytes()
    (card,) = (found.folder / "files" / "media" / "table").glob("result_card_*.table.json")
    rows = {row[0]: row[1:] for row in json.loads(card.read_text())["data"]}
    assert rows["loss"] == [results["before"]["loss"], results["after"]["loss"]]
    hparams = yaml.unsafe_load((tmp_path / "run" / "csv" / "version_0" / "hparams.yaml").read_text())
    assert hparams["trainer"]["default_root_dir"] == str(tmp_path / "run")


def test_a_run_that_fails_is_a_failed_wandb_run_and_ends(composed: Compose, tmp_path: Path):
    with pytest.raises(SystemExit):
        zo_train.run(composed("logger=wandb", "update.lr=1e30", "max_skipped=1", "trainer.max_steps=50", folder="bad"))
    zo_train.run(composed("logger=wandb", "trainer.max_steps=1", folder="good"))
    (bad,), (good,) = offline_runs(tmp_path / "bad"), offline_runs(tmp_path / "good")
    assert (bad.exit_code, good.exit_code) == (1, 0)
    assert bad.run.run_id != good.run.run_id


def test_a_score_of_a_checkpoint_begins_no_wandb_run(composed: Compose, tmp_path: Path):
    zo_train.run(composed("trainer.max_steps=1"))
    (tmp_path / "eval").mkdir()
    zo_eval.run(composed("logger=wandb", f"ckpt_path={tmp_path / 'run'}", folder="eval", name="eval"))
    assert not offline_runs(tmp_path / "eval")


def test_the_configuration_is_a_tree(composed: Compose, tmp_path: Path, capsys):
    """Resolved; written always, printed on request."""
    config = composed("extras.tags=[one]")
    show_config(config, tmp_path, show=False)
    assert not capsys.readouterr().err
    show_config(config, tmp_path, show=True)
    written = (tmp_path / "config_tree.log").read_text()
    for printed in (written, capsys.readouterr().err):
        assert "├── seed: 42" in printed and "├── query" in printed and "eps: 0.001" in printed and "${" not in printed


@pytest.mark.parametrize("package", ["wandb", "tensorboard"])
def test_a_missing_package_is_told_early(composed: Compose, monkeypatch, capsys, package: str):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit):
        zo_train.run(composed(f"logger={package}"))
    said = capsys.readouterr().err
    assert f"pip install {package}" in said and "logger=csv" in said


def test_wandb_without_a_login_is_told_before_the_engine_starts(composed: Compose, monkeypatch, tmp_path, capsys):
    import wandb

    wandb.teardown()  # it has read the environment already
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(SystemExit):
        zo_train.run(composed("logger=wandb", "trainer.max_steps=1"))
    said = capsys.readouterr().err
    wandb.teardown()
    assert "WANDB_MODE=offline" in said and "starting" not in said


@pytest.mark.slow
def test_wandb_is_imported_only_when_used(tmp_path: Path):
    code = f"""
import sys
from zo_lightning.cli.train import main
sys.argv = ["zo-train", *{TINY}, "trainer.max_steps=1", "hydra.run.dir={tmp_path / "run"}"]
main()
print("wandb" in sys.modules, "tensorboard" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, cwd=tmp_path)
    assert run.stdout.splitlines()[-1] == "False False", run.stderr
