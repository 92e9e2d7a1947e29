"""What broke in frameworks like this one, by public report: one test a row, here or where the table says."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate as hydra_instantiate
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities.exceptions import SIGTERMException
from omegaconf import DictConfig, OmegaConf
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader

from tests.backends import Opened, Row
from tests.command import TINY, Compose, bank, start, wait_for
from tests.conformance import test_contract as contract
from zo_lightning.callbacks.interrupt_checkpoint import InterruptCheckpoint
from zo_lightning.checkpoint.journal import read_journal
from zo_lightning.cli import train as zo_train
from zo_lightning.cli.report import read_metrics
from zo_lightning.cli.session import build
from zo_lightning.cli.trainer import build_trainer
from zo_lightning.config import instantiate
from zo_lightning.core.types import BankSpec, Batch
from zo_lightning.directions import LowRank

# Report, file from ``tests/``, test.
HERE = "integration/test_known_breakages.py"
PACKAGING = "unit/test_packaging.py"
EVERY_STEP = "test_resuming_from_every_step_ends_bitwise_where_the_unbroken_run_does"
TESTS = (
    ("Lightning #16143, #17958, #20674, #17167", HERE, "test_forty_steps_are_forty_by_every_count"),
    ("Lightning #19764, #18780", HERE, "test_a_mid_epoch_resume_shows_every_example_once"),
    ("Lightning #19764, #18780", "integration/test_resume.py", EVERY_STEP),
    ("Lightning #19764, #18780, on vLLM", "integration/test_training_on_vllm.py", EVERY_STEP),
    ("Lightning #17903", HERE, "test_accumulation_and_periodic_checkpoints_count_the_same_steps"),
    ("wandb #1314, Lightning #5212", "integration/test_loggers.py", "test_jobs_of_a_sweep_are_wandb_runs_of_their_own"),
    (
        "Hydra #2070",
        "integration/test_ddp.py",
        "test_a_sweep_on_two_ranks_makes_two_folders_that_hold_what_one_rank_makes",
    ),
    ("Hydra #1817, #2925", HERE, "test_jobs_of_the_same_second_have_folders_of_their_own"),
    ("Hydra #2364, #2591, #1183", HERE, "test_a_dataclass_given_to_instantiate_is_refused_with_advice"),
    ("Lightning #21757, #20643", HERE, "test_every_kind_of_checkpoint_loads_with_weights_only"),
    ("Hydra #2125, #1868, #742", PACKAGING, "test_the_wheel_composes_its_configuration_in_another_folder"),
    ("Hydra #2284, #2551", "integration/test_sweeps.py", "test_a_bad_job_fails_alone_and_says_why"),
    ("Lightning #14893, #20542, #5969", HERE, "test_a_command_ended_by_sigterm_or_sigkill_goes_on_to_the_same_bits"),
    ("Lightning #21691", PACKAGING, "test_malicious_lightning_releases_are_excluded"),
    ("vLLM #42125, #47724, #42245", HERE, "test_the_contract_catches_a_stale_cache"),
    ("vLLM, on it", "conformance/test_contract.py", "test_the_centre_moves_with_every_commit"),
)


@pytest.mark.parametrize(("report", "file", "test"), TESTS)
def test_every_report_has_its_test(report: str, file: str, test: str):
    assert f"\ndef {test}(" in (Path(__file__).parents[1] / file).read_text(), report


def fit(run, module=None, data=None, ckpt_path=None, **settings):
    module = module or run.open_module()
    saves = any(isinstance(callback, ModelCheckpoint) for callback in settings.get("callbacks", ()))
    trainer = run.trainer(enable_checkpointing=saves, **settings)
    trainer.fit(module, data or run.data(), ckpt_path=ckpt_path, weights_only=True)
    return trainer, module


def saved_steps(folder: Path) -> dict[int, dict[str, Any]]:
    """Checkpoints by the step in their name."""
    return {int(path.stem.split("=")[1]): torch.load(path, weights_only=True) for path in folder.glob("step=*.ckpt")}


# --- counting


def test_forty_steps_are_forty_by_every_count(run):
    records = []
    module = run.open_module()
    commit = module.backend.commit
    module.backend.commit = lambda record: (records.append(record), commit(record))
    trainer, _ = fit(run, module, callbacks=[ModelCheckpoint(run.root, filename="{step}", every_n_train_steps=40)])
    (saved,) = saved_steps(run.root).values()
    counts = [trainer.global_step, module.backend.version, int(module.version), len(records), saved["global_step"]]
    assert counts == [40] * 5
    assert saved["zo_lightning"]["bank"]["version"] == 40


def test_accumulation_and_periodic_checkpoints_count_the_same_steps(run):
    every_three = ModelCheckpoint(run.root, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    fit(run, max_steps=20, accumulate_grad_batches=2, callbacks=[every_three])
    found = saved_steps(run.root)
    assert sorted(found) == [3, 6, 9, 12, 15, 18]
    assert all(step == saved["zo_lightning"]["bank"]["version"] for step, saved in found.items())


# --- resuming in the middle of an epoch


@pytest.mark.parametrize(("plain", "exact"), [(False, True), (True, False)], ids=["our loader", "a plain DataLoader"])
def test_a_mid_epoch_resume_shows_every_example_once(run, plain, exact):
    """Eight of 13 batches, then the other five in another process's place."""
    seen: list[int] = []

    class Seen(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            seen.extend(example.prompt[0] for example in batch.examples)

    def data():
        ours = run.data()
        if plain:
            ours.train_dataloader = lambda: DataLoader(
                run.examples, batch_size=4, shuffle=True, collate_fn=lambda examples: Batch(examples=tuple(examples))
            )
        return ours

    saver = ModelCheckpoint(run.root, filename="{step}", every_n_train_steps=8)
    fit(run, data=data(), max_steps=8, callbacks=[saver, Seen()])
    fit(run, data=data(), max_steps=13, callbacks=[Seen()], ckpt_path=run.root / "step=8.ckpt")
    assert len(seen) >= 48
    assert (sorted(seen) == list(range(50))) is exact


# --- folders


FROZEN_CLOCK = """
import datetime
import hydra.core.utils

class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 1)

hydra.core.utils.datetime = Frozen  # what ${now:...} asks
from zo_lightning.cli import train
train.train = lambda config, output, checkpoint, resume: print(output.resolve())
train.main()
"""


def test_jobs_of_the_same_second_have_folders_of_their_own(tmp_path: Path):
    jobs = [
        subprocess.Popen([sys.executable, "-c", FROZEN_CLOCK], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    folders = [Path(job.communicate(timeout=120)[0].split()[-1]) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0]
    assert folders[0] != folders[1] and all(folder.is_dir() for folder in folders)
    assert {folder.parent.name for folder in folders} == {"2026-01-01"}
    assert [folder.name for folder in folders] == [f"00-00-00-{job.pid}" for job in jobs]


# --- types that change on the way


def test_a_dataclass_given_to_instantiate_is_refused_with_advice():
    node = {"_target_": "zo_lightning.core.types.BaseDigest", "num_parameters": 1}
    spec = BankSpec(rank=2, capacity=4)
    assert isinstance(hydra_instantiate(OmegaConf.create(node), hex=spec).hex, DictConfig)  # what it saves us from
    with pytest.raises(TypeError, match="_partial_"):
        instantiate(OmegaConf.create(node), hex=spec)
    assert dataclasses.is_dataclass(spec)
    assert instantiate(OmegaConf.create(node | {"_partial_": True}))(hex=spec).hex is spec


def test_every_kind_of_checkpoint_loads_with_weights_only(run):
    def savers() -> list[Callback]:
        periodic = ModelCheckpoint(run.root, filename="periodic", every_n_train_steps=6, save_last=True)
        best = ModelCheckpoint(run.root, filename="best", monitor="val/loss")
        bare = ModelCheckpoint(run.root, filename="bare", every_n_train_steps=7, save_weights_only=True)
        at_end = InterruptCheckpoint(run.root, filename="end")
        return [periodic, best, bare, at_end, EarlyStopping("val/loss", patience=99), LearningRateMonitor("step")]

    def module():
        direction = LowRank(rank=2, refresh_every=2)  # the bank is full after four steps and merges
        merging = dict(direction=direction, bank=BankSpec(rank=2, capacity=4, policy="merge"))
        return run.open_module(scheduler=lambda optimizer: ExponentialLR(optimizer, 0.9), **merging)

    settings = dict(max_steps=20, val_check_interval=5, limit_val_batches=1.0, max_time={"hours": 1})
    logger = CSVLogger(run.root)
    trainer, whole = fit(run, module(), callbacks=savers(), logger=logger, gradient_clip_val=1.0, **settings)
    trainer.save_checkpoint(run.root / "by_hand.ckpt")
    names = sorted(path.stem for path in run.root.glob("*.ckpt"))
    assert names == ["bare", "best", "by_hand", "end", "last", "periodic"]
    for name in names:
        saved = torch.load(run.root / f"{name}.ckpt", weights_only=True)
        scored = module()
        run.trainer(limit_val_batches=1.0).validate(
            scored, run.data(), ckpt_path=run.root / f"{name}.ckpt", weights_only=True, verbose=False
        )
        assert scored.backend.version == saved["global_step"] == saved["zo_lightning"]["bank"]["version"] > 0, name
    _, resumed = fit(run, module(), ckpt_path=run.root / "periodic.ckpt", callbacks=savers(), logger=logger, **settings)
    assert torch.equal(resumed.backend.snapshot()["left"], whole.backend.snapshot()["left"])


# --- the ends of processes


class Terminate(Callback):
    """Sends SIGTERM to this process at the n-th call of a hook."""

    def __init__(self, hook: str, number: int) -> None:
        self.left = number
        setattr(self, hook, self.count)

    def count(self, *args: Any) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("hook", "number"),
    [
        ("on_train_batch_start", 14),  # between two windows of accumulation
        ("on_before_optimizer_step", 9),  # in the middle of a step
        ("on_validation_batch_start", 5),
        ("on_before_optimizer_step", 20),  # in the last step
    ],
)
def test_sigterm_ends_the_step_saves_it_and_loses_nothing(run, hook, number):
    settings = dict(max_steps=20, accumulate_grad_batches=2, val_check_interval=3, limit_val_batches=1.0)
    _, unbroken = fit(run, **settings)
    with pytest.raises(SIGTERMException):
        fit(run, callbacks=[InterruptCheckpoint(run.root), Terminate(hook, number)], **settings)
    trainer, module = fit(run, ckpt_path=run.root / "last.ckpt", **settings)
    assert trainer.global_step == module.backend.version == 20
    assert torch.equal(module.backend.snapshot()["left"], unbroken.backend.snapshot()["left"])


def test_sigterm_in_the_last_batch_of_a_test_ends_the_command_too(composed: Compose):
    session = build(composed())
    session.trainer.callbacks.append(Terminate("on_test_batch_start", 1))
    with session.engine(), pytest.raises(SystemExit) as stop:
        session.test()
    assert stop.value.code == 143


SHORT = ["data.batch_size=4", "task.num_train=24", "task.num_dev=4", "task.num_test=4", "trainer.max_steps=30"]


def command_ended_by(sent: signal.Signals, folder: Path) -> tuple[int, str]:
    """Run a command in a process of its own and end it once it has logged some rows; its exit code and its output."""
    tiny = [setting for setting in TINY if not setting.startswith(("task.num", "trainer.max_steps"))]
    command = start(
        *tiny, *SHORT, "logger.csv.flush_logs_every_n_steps=1", f"hydra.run.dir={folder}", cwd=folder.parent
    )
    metrics, rows = folder / "csv" / "version_0" / "metrics.csv", random.randrange(4, 16)
    wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > rows, command)
    command.send_signal(sent)
    printed, _ = command.communicate(timeout=60)
    return command.returncode, printed


def test_a_command_ended_by_sigterm_or_sigkill_goes_on_to_the_same_bits(composed: Compose, tmp_path: Path):
    codes = {signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}
    with ThreadPoolExecutor(2) as pool:
        ended = {sent: pool.submit(command_ended_by, sent, tmp_path / sent.name) for sent in codes}
        zo_train.run(composed(*SHORT, folder="whole"))
    for sent, code in codes.items():
        folder = tmp_path / sent.name
        returned, printed = ended[sent].result()
        assert returned == code and "Traceback" not in printed, printed
        logged = read_metrics(folder)["train/loss"][-1][0]
        reached = len(read_journal(folder / "checkpoints" / "journal" / "rank0").entries)
        assert logged <= reached < 30, "it ended before it could be cut: give it more steps"
        zo_train.run(composed(*SHORT, f"ckpt_path={folder}"))
        assert torch.equal(bank(folder)["left"], bank(tmp_path / "whole")["left"]), (sent, reached)


def test_under_slurm_a_run_may_keep_its_own_signals(run, composed: Compose, monkeypatch):
    """Lightning would requeue the job itself at SIGUSR1; submitit and most schedulers do that already."""
    for name, value in dict(SLURM_NTASKS="1", SLURM_JOB_NAME="train", SLURM_JOB_ID="7", SLURM_PROCID="0").items():
        monkeypatch.setenv(name, value)
    handlers = []

    def submitits(*args: object) -> None:
        """What is there already stays."""

    before = signal.signal(signal.SIGUSR1, submitits)

    class Handlers(Callback):
        def on_train_start(self, trainer, module):
            handlers.append(signal.getsignal(signal.SIGUSR1))

    with pytest.raises(SIGTERMException):
        fit(
            run,
            plugins=[SLURMEnvironment(auto_requeue=False)],
            callbacks=[InterruptCheckpoint(run.root), Handlers(), Terminate("on_train_batch_start", 5)],
        )
    signal.signal(signal.SIGUSR1, before)
    assert handlers == [submitits]
    assert torch.load(run.root / "last.ckpt", weights_only=True)["global_step"] == 5
    option = "{_target_: lightning.pytorch.plugins.environments.SLURMEnvironment, auto_requeue: false}"
    trainer = build_trainer(composed(f"trainer.plugins=[{option}]"))
    assert trainer._accelerator_connector.cluster_environment.auto_requeue is False


# --- caches


class StaleCache:
    """An engine whose cache knows adapters by their slot, not by what is in them."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.cache: dict[Any, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def evaluate(self, requests):
        slots = list(dict.fromkeys(request.point.terms for request in requests))
        for request in requests:
            key = (slots.index(request.point.terms), request.examples)
            if key not in self.cache:
                (self.cache[key],) = self.inner.evaluate([request])
        return tuple(self.cache[slots.index(request.point.terms), request.examples] for request in requests)


def test_the_contract_catches_a_stale_cache():
    """The same test holds on every real backend: ``test_contract.py``."""
    fresh, oracle = Opened(Row("fake")), Opened(Row("fake"))
    contract.test_the_centre_moves_with_every_commit(fresh, oracle)
    stale = fresh.reset()
    stale.backend = StaleCache(stale.backend)
    with pytest.raises(AssertionError):
        contract.test_the_centre_moves_with_every_commit(stale, oracle.reset())
