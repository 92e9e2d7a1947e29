"""Data parallel from the command line: two ranks against one, sweeps, and the death of a rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.command import Compose, bank, composer, start
from zo_lightning.checkpoint.journal import read_journal
from zo_lightning.cli import eval as zo_eval
from zo_lightning.cli import train as zo_train
from zo_lightning.cli.errors import reported

TINY = (
    "model=tiny-llama",
    "backend=dense",
    "scheduler=constant",
    "update.lr=1e-4",
    "data.batch_size=7",  # shares of 3 and 4, and of 2 and 3 at the end of an epoch
    "data.eval_batch_size=16",
    "task.num_train=40",
    "task.num_dev=9",
    "task.num_test=33",  # the last batch has one example: one rank has no share of it
    "trainer.max_steps=8",
    "trainer.val_check_interval=null",
    "trainer.check_val_every_n_epoch=1",
    "checkpoint.every_n_steps=3",
)
TWO = "trainer=ddp_sim"


@pytest.fixture
def composed(tmp_path: Path) -> Compose:
    return composer(tmp_path, TINY)


def run_command(*arguments: str, cwd: Path, switches: Sequence[str] = (), **how: Any) -> subprocess.Popen[str]:
    return start(*switches, *TINY, *arguments, cwd=cwd, **how)


def metrics(folder: Path) -> dict[str, list[float]]:
    from zo_lightning.cli.report import read_metrics

    return {name: [value for _, value in points] for name, points in read_metrics(folder).items()}


def assert_same_run(one: Path, two: Path) -> None:
    """As one rank's, but for the noise of other batches in each forward pass."""
    torch.testing.assert_close(bank(one)["left"], bank(two)["left"], rtol=0, atol=2e-5)
    expected, found = metrics(one), metrics(two)
    for name in ("train/loss", "val/loss", "val/accuracy"):
        assert found[name] == pytest.approx(expected[name], abs=1e-5)
    assert found["train/projected_grad"] == pytest.approx(expected["train/projected_grad"], abs=2e-3)
    a, b = (json.loads((folder / "results.json").read_text()) for folder in (one, two))
    for when in ("before", "after"):
        assert b[when]["accuracy"] == a[when]["accuracy"]
        assert b[when]["loss"] == pytest.approx(a[when]["loss"], abs=1e-5)


def test_a_sweep_on_two_ranks_makes_two_folders_that_hold_what_one_rank_makes(composed: Compose, tmp_path: Path):
    sweep = run_command(
        TWO, "seed=1,2", f"paths.root={tmp_path}", "hydra.sweep.dir=sweep", cwd=tmp_path, switches=("-m",)
    )
    for seed in (1, 2):
        zo_train.run(composed(f"seed={seed}", folder=f"one{seed}"))
    printed, _ = sweep.communicate(timeout=240)
    assert sweep.returncode == 0, printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one1", "one2", "sweep"]
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir() if path.is_dir()) == ["0", "1"]
    for job, seed in enumerate((1, 2)):
        one, two = tmp_path / f"one{seed}", tmp_path / "sweep" / str(job)
        assert_same_run(one, two)
        ranks = [read_journal(two / "checkpoints" / "journal" / f"rank{rank}") for rank in (0, 1)]
        assert ranks[0].entries == ranks[1].entries and sorted(ranks[0].entries) == list(range(8))
        digests = [json.loads((folder / "results.json").read_text())["base_digest"] for folder in (one, two)]
        assert digests[0] == digests[1]
    assert not torch.equal(bank(tmp_path / "one1")["left"], bank(tmp_path / "one2")["left"])


@pytest.mark.slow
def test_two_ranks_go_on_from_what_one_has_saved_and_score_it(composed: Compose, tmp_path: Path, capsys):
    zo_train.run(composed(folder="whole"))
    zo_train.run(composed("trainer.max_steps=5", folder="parts"))
    zo_train.run(composed(TWO, f"ckpt_path={tmp_path / 'parts'}", folder="ignored"))
    torch.testing.assert_close(bank(tmp_path / "whole")["left"], bank(tmp_path / "parts")["left"], rtol=0, atol=2e-5)
    after = json.loads((tmp_path / "parts" / "results.json").read_text())["after"]
    zo_train.run(composed(TWO, f"ckpt_path={tmp_path / 'parts' / 'checkpoints' / 'last.ckpt'}", "trainer.max_steps=9"))
    assert [*read_journal(tmp_path / "run" / "checkpoints" / "journal" / "rank1").entries] == [8]  # a fork
    capsys.readouterr()
    zo_eval.run(composed(TWO, f"ckpt_path={tmp_path / 'parts'}", folder="scored", name="eval"))
    assert json.loads(capsys.readouterr().out)["test"] == after
    assert "RANK" not in os.environ and "LOCAL_RANK" not in os.environ


TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("environment", "overrides", "sweep", "told"),
    [
        ({}, ["trainer=ddp"], False, "trainer=ddp_sim"),
        ({}, [TWO, "trainer.num_nodes=2"], False, "torchrun"),
        (TORCHRUN, [], False, "trainer=ddp"),
        (TORCHRUN, [TWO, "trainer.devices=4"], False, "trainer.devices"),
        (TORCHRUN, [TWO], True, "sweep"),
    ],
)
def test_what_cannot_be_launched_is_refused(
    composed: Compose, monkeypatch, capsys, environment: dict, overrides: list, sweep: bool, told: str
):
    if overrides == ["trainer=ddp"] and torch.cuda.device_count() >= 2:
        pytest.skip("this machine has the GPUs")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit), reported():
        zo_train._run(composed(*overrides, folder="refused"), [], sweep=sweep)
    printed = capsys.readouterr().err
    assert told in printed and "Traceback" not in printed


LONG = (TWO, "trainer.max_steps=100000", "trainer.check_val_every_n_epoch=1000", "hydra.run.dir=run")


def training(tmp_path: Path) -> tuple[subprocess.Popen[str], int]:
    """A run on two ranks that has written a snapshot, and the process of its second rank."""
    run = run_command(*LONG, cwd=tmp_path)
    deadline = time.monotonic() + 180
    while not any((tmp_path / "run" / "checkpoints" / "store" / "manifests").glob("step-*")):
        assert run.poll() is None and time.monotonic() < deadline, run.communicate()[0]
        time.sleep(0.1)
    (second,) = (int(child) for child in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split())
    return run, second


def assert_gone(process: int) -> None:
    deadline = time.monotonic() + 30
    while Path(f"/proc/{process}").exists():
        assert time.monotonic() < deadline, "the second rank lives on"
        time.sleep(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_death_of_a_rank_ends_the_run_with_its_checkpoint(tmp_path: Path):
    run, second = training(tmp_path)
    os.kill(second, signal.SIGKILL)
    printed, _ = run.communicate(timeout=60)
    assert run.returncode == 75
    assert "error: rank 1 ended with exit code -9" in printed and "rank1.log" in printed
    assert "Traceback" not in printed
    assert len(read_journal(tmp_path / "run" / "checkpoints" / "journal" / "rank0").entries) >= 3


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_no_rank_outlives_the_first(tmp_path: Path, number: int, code: int):
    run, second = training(tmp_path)
    run.send_signal(number)
    printed, _ = run.communicate(timeout=60)
    assert run.returncode == code, printed
    assert_gone(second)
    assert len(read_journal(tmp_path / "run" / "checkpoints" / "journal" / "rank0").entries) >= 3


@pytest.mark.slow
def test_torchrun_starts_the_ranks_of_one_folder(composed: Compose, tmp_path: Path):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    run = run_command(TWO, f"paths.root={tmp_path}", "hydra.run.dir=two", cwd=tmp_path, launcher=torchrun)
    zo_train.run(composed(folder="one"))
    printed, _ = run.communicate(timeout=240)
    assert run.returncode == 0, printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    assert_same_run(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM, which has no wheel for this machine")
@pytest.mark.parametrize("process", ["inline", "child"])
def test_two_engines_train_as_one(tmp_path: Path, process: str):
    engine = ("backend=vllm", f"backend.process={process}", "model.max_length=256")
    for folder, ranks in (("one", "trainer=default"), ("two", TWO)):
        run = run_command(ranks, *engine, f"paths.root={tmp_path}", f"hydra.run.dir={folder}", cwd=tmp_path)
        printed, _ = run.communicate(timeout=240)
        assert run.returncode == 0, printed
    assert_same_run(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM, which has no wheel for this machine")
@pytest.mark.parametrize(("model", "workers"), [("tiny-opt", 2), ("tiny-llama", 4)])
def test_tensor_parallel_workers_train_as_one(tmp_path: Path, model: str, workers: int):
    """Each worker merges its tiles of the weights, the checkpoint has the whole; four share two key heads."""
    shared = ("backend=vllm", f"model={model}", "model.max_length=256", "direction.refresh_every=3")
    merging = ("bank.policy=merge", "bank.capacity=2", f"paths.root={tmp_path}")
    for size in (1, workers):
        engine = f"+backend.engine.tensor_parallel_size={size}"
        run = run_command(*shared, *merging, engine, f"hydra.run.dir={size}", cwd=tmp_path)
        printed, _ = run.communicate(timeout=240)
        assert run.returncode == 0, printed
    assert_same_run(tmp_path / "1", tmp_path / str(workers))
    one, two = bank(tmp_path / "1"), bank(tmp_path / str(workers))
    assert one["num_merged"] == two["num_merged"] == 2 and one["matrices"] == two["matrices"]
    for a, b in zip(one["merged"], two["merged"], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


SCRIPT = """
import json, os, sys
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
import zo_lightning.strategies
from zo_lightning.backends.digest import digest_factors
from zo_lightning.backends.fake import FakeBackend
from zo_lightning.core.method import Method
from zo_lightning.core.types import BankSpec, Example, Layout, MatrixSpec, Score
from zo_lightning.data import ExampleDataModule
from zo_lightning.directions import LowRank
from zo_lightning.errors import RankError
from zo_lightning.estimators import Spsa
from zo_lightning.modules import ZOModule
from zo_lightning.queries import Antithetic
from zo_lightning.updates import Sgd

strategy, devices, broken = sys.argv[1], int(sys.argv[2]), len(sys.argv) > 3
layout = Layout(model="q", matrices=(MatrixSpec(name="a", rows=6, cols=4),), num_parameters=24)
examples = tuple(Example(prompt=(i, 3), options=((100,), (200, 201)), label=i % 2) for i in range(51))
direction = LowRank(rank=2, refresh_every=5, cycle=4)
method = Method(direction=direction, query=Antithetic(eps=1e-2), estimator=Spsa(), update=Sgd(lr=0.3))
module = ZOModule(method=method, backend=FakeBackend(), objective=Score(loss="gold"), layout=layout,
                  bank=BankSpec(rank=2, capacity=8), seed=42, num_labels=2)
data = ExampleDataModule(train=examples, dev=examples[:9], test=examples[:9], batch_size=4, eval_batch_size=4, seed=1)

class Breaks(Callback):
    def on_train_batch_end(self, trainer, *_):
        if broken and trainer.global_rank == 1 and trainer.global_step == 3:
            raise RuntimeError("one rank alone")

trainer = Trainer(strategy=strategy, devices=devices, accelerator="cpu", max_steps=20, max_epochs=-1, logger=False,
                  enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1, default_root_dir=".",
                  val_check_interval=5, check_val_every_n_epoch=None, accumulate_grad_batches=2, max_time="00:01:00:00",
                  callbacks=[Breaks(), EarlyStopping("val/loss", patience=20),
                             ModelCheckpoint(".", filename=f"of{devices}", monitor="val/loss")])
try:
    trainer.fit(module, data)
except RankError as error:
    print(json.dumps(str(error)))
    raise SystemExit(7)
metrics = trainer.test(module, data, ckpt_path="best", verbose=False)[0]
if trainer.is_global_zero:
    print(json.dumps({"factors": digest_factors(module._kept), "size": trainer.world_size, **metrics}))
"""


def run_script(tmp_path: Path, *arguments: str) -> tuple[int, Any]:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    return done.returncode, json.loads(done.stdout.splitlines()[-1]) if done.stdout else done.stderr


@pytest.mark.slow
def test_a_script_trains_alike_on_one_rank_and_on_three(tmp_path: Path):
    """Lightning starts the ranks of a script; stock callbacks decide alike on all of them."""
    (code, one), (other_code, three) = run_script(tmp_path, "zo", "1"), run_script(tmp_path, "zo_ddp", "3")
    assert code == other_code == 0, (one, three)
    assert (one.pop("size"), three.pop("size")) == (1, 3)
    assert one == three


@pytest.mark.slow
def test_an_error_on_one_rank_of_a_script_ends_all(tmp_path: Path):
    code, told = run_script(tmp_path, "zo_ddp", "2", "broken")
    assert code == 7 and told == "rank 1 failed: RuntimeError: one rank alone"
