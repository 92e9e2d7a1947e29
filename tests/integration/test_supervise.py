"""Failures on purpose and the supervisor, on commands as a user types them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.command import TINY, Compose, bank, start, wait_for
from zo_lightning.checkpoint.store import Store
from zo_lightning.cli import train as zo_train

LONG = [setting for setting in TINY if not setting.startswith(("trainer.max_steps", "backend"))]
ENDLESS = [*LONG, "backend=fake", "trainer.max_steps=100000"]


def command(*words: str, cwd: Path) -> tuple[int, str]:
    """Exit code and output of a command."""
    run = start(*words, cwd=cwd)
    printed, _ = run.communicate(timeout=280)
    return run.returncode, printed


def injected(folder: Path) -> list[tuple[str, int]]:
    """What struck, and after which step."""
    lines = (folder / "failures.jsonl").read_text().splitlines()
    return [(entry["failure"], entry["step"]) for entry in map(json.loads, lines)]


def summary(printed: str) -> dict[str, Any]:
    """The last line of a supervised command."""
    return json.loads(printed.splitlines()[-1])


@pytest.mark.slow
def test_a_run_that_is_killed_ends_where_an_unbroken_one_does(composed: Compose, tmp_path: Path):
    words = [*TINY, "failure=kill", "failure.kill.step=5", "supervise=true", f"hydra.run.dir={tmp_path / 'run'}"]
    code, printed = command(*words, cwd=tmp_path)
    assert code == 0, printed
    assert injected(tmp_path / "run") == [("kill", 5)]
    report = summary(printed)
    assert (report["incidents"], report["exit_code"], report["gave_up"]) == (1, 0, None)
    assert json.loads((tmp_path / "run" / "results.json").read_text())["steps"] == 6
    zo_train.run(composed(folder="whole"))
    assert torch.equal(bank(tmp_path / "run")["left"], bank(tmp_path / "whole")["left"])


@pytest.mark.slow
def test_a_run_that_dies_before_its_first_checkpoint_starts_again_in_its_folder(tmp_path: Path):
    fake = [*LONG, "backend=fake", "trainer.max_steps=3"]
    words = [*fake, "failure=kill", "failure.kill.step=0", "supervise=true", f"hydra.run.dir={tmp_path / 'run'}"]
    code, printed = command(*words, cwd=tmp_path)
    assert code == 0 and injected(tmp_path / "run") == [("kill", 0)], printed
    assert bank(tmp_path / "run")["version"] == 3


@pytest.mark.slow
def test_a_configuration_that_cannot_run_is_not_tried_again(tmp_path: Path):
    code, printed = command(*TINY, "supervise=true", "task.num_train=0", cwd=tmp_path)
    assert code == 2 and printed.count("error: ") == 1, printed
    assert summary(printed)["incidents"] == 0


def test_what_cannot_be_supervised_is_refused(tmp_path: Path):
    code, printed = command(*TINY, "supervise.spare=true", "trainer=ddp_sim", cwd=tmp_path)
    assert code == 2 and "`supervise.spare`" in printed, printed
    code, printed = command("-m", *TINY, "supervise=true", "seed=1,2", cwd=tmp_path)
    assert code == 2 and "`supervise`" in printed, printed


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("number", "code", "supervised"),
    [
        (signal.SIGUSR1, 138, True),
        pytest.param(signal.SIGTERM, 143, True, marks=SLOW),
        pytest.param(signal.SIGUSR1, 138, False, marks=SLOW),
    ],
    ids=str,
)
def test_a_signal_ends_the_run_in_a_durable_state(tmp_path: Path, number: int, code: int, supervised: bool):
    folder = tmp_path / "run"
    run = start(*ENDLESS, f"supervise={str(supervised).lower()}", f"hydra.run.dir={folder}", cwd=tmp_path)
    wait_for(lambda: any((folder / "checkpoints" / "store").glob("manifests/step-*")), run)
    run.send_signal(number)
    printed, _ = run.communicate(timeout=60)
    assert run.returncode == code and "Traceback" not in printed, printed
    assert bank(folder)["version"] >= 2
    if supervised:
        assert summary(printed)["exit_code"] == code


@pytest.mark.slow
def test_every_failure_of_the_process_is_survived_under_supervision(tmp_path: Path):
    words = [*LONG, "backend=fake", "trainer.max_steps=40", "supervise=true", "supervise.hang_floor=2"]
    failures = {"kill": 6, "hang": 12, "engine_death": 18, "sigterm": 24, "nan_loss": 30}
    settings = [f"failure.{name}.step={step}" for name, step in failures.items()]
    names = ",".join([*failures, "cross_device_tmp"])
    code, printed = command(*words, f"failure=[{names}]", *settings, f"hydra.run.dir={tmp_path / 'run'}", cwd=tmp_path)
    assert code == 0, printed
    assert [name for name, _ in injected(tmp_path / "run")] == ["cross_device_tmp", *failures]
    ends = [json.loads(line)["cause"] for line in (tmp_path / "run" / "incidents.jsonl").read_text().splitlines()]
    assert ends == ["exit code 137", "hang in training", "exit code 75", "exit code 143"]
    assert json.loads((tmp_path / "run" / "results.json").read_text())["skipped_steps"] == 1


@pytest.mark.parametrize("fault", ["disk_full", pytest.param("torn_write", marks=pytest.mark.slow)])
def test_a_failure_of_the_disk_ends_the_run_and_a_resumed_one_ends_as_an_unbroken_one(
    composed: Compose, tmp_path: Path, fault: str
):
    folder = tmp_path / "run"
    words = [*TINY, f"failure={fault}", f"failure.{fault}.step=5", f"hydra.run.dir={folder}"]
    code, printed = command(*words, cwd=tmp_path)
    assert injected(folder) == [(fault, 5)], printed
    if fault == "disk_full":
        assert code == 2 and "no space left on the disk" in printed and "Traceback" not in printed, printed
    else:
        assert code == -signal.SIGKILL
    assert Store([folder / "checkpoints" / "store"]).load().step == 4
    zo_train.run(composed(f"ckpt_path={folder}"))
    zo_train.run(composed(folder="whole"))
    assert torch.equal(bank(folder)["left"], bank(tmp_path / "whole")["left"])


@pytest.mark.slow
def test_a_run_under_poisson_kills_comes_to_its_end(tmp_path: Path):
    words = [*TINY, "trainer.max_steps=30", "supervise=true", "failure=poisson", "failure.poisson.per_step=0.1"]
    code, printed = command(*words, f"hydra.run.dir={tmp_path / 'run'}", cwd=tmp_path)
    assert code == 0 and len(injected(tmp_path / "run")) == summary(printed)["incidents"] > 0, printed
    code, printed = command(*TINY, "trainer.max_steps=30", f"hydra.run.dir={tmp_path / 'whole'}", cwd=tmp_path)
    assert torch.equal(bank(tmp_path / "run")["left"], bank(tmp_path / "whole")["left"])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["dense", pytest.param("vllm", marks=pytest.mark.vllm)])
def test_a_spare_takes_over_a_run_and_ends_where_an_unbroken_one_does(tmp_path: Path, backend: str):
    folder = tmp_path / "run"
    words = [*LONG, f"backend={backend}", "trainer.max_steps=12"]
    waits = ["failure=hang", "failure.hang.step=9", "supervise.hang_floor=1000"]  # until the spare is ready
    run = start(*words, *waits, "supervise.spare=true", f"hydra.run.dir={folder}", cwd=tmp_path)
    log = folder / "train.log"
    wait_for(lambda: log.exists() and "a spare stands by" in log.read_text(), run, seconds=200)
    primary, _ = children(run.pid)
    os.kill(primary, signal.SIGKILL)
    printed, _ = run.communicate(timeout=280)
    assert run.returncode == 0 and summary(printed)["incidents"] == 1, printed
    (incident,) = map(json.loads, (folder / "incidents.jsonl").read_text().splitlines())
    assert (incident["by_spare"], incident["step"], incident["steps_lost"]) == (True, 9, 0)
    code, printed = command(*words, f"hydra.run.dir={tmp_path / 'whole'}", cwd=tmp_path)
    assert code == 0 and torch.equal(bank(folder)["left"], bank(tmp_path / "whole")["left"]), printed


def children(pid: int) -> list[int]:
    """Processes that a process has started, oldest first."""
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
