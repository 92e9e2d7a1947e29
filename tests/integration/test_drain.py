"""The continuous drain on an ordinary LightningModule: what is restored has the bits of the run at that step."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins import MixedPrecision

from tests.backends import one_thread
from tests.first_order import ROLES, Keep, Loader, Net, Triples, Watch, saved_triples, trainer_of
from zo_lightning.callbacks.interrupt_checkpoint import InterruptCheckpoint
from zo_lightning.callbacks.resilient_checkpoint import ResilientCheckpoint
from zo_lightning.checkpoint.store import Store
from zo_lightning.drain.capture import Capture
from zo_lightning.drain.keeper import WARM_UP
from zo_lightning.drain.messages import Setup, StepNote
from zo_lightning.drain.restore import restore
from zo_lightning.errors import ConfigError


def drained(folder: Path, steps: int = 60, *, net: Net | None = None, ckpt_path: Any = None, **settings: Any):
    """Train with the keeper, and watch beside it."""
    options = {"mode": "drain", "num_shards": 4, **settings.pop("options", {})}
    keeper, watch = Keep(folder, drain=options), Watch()
    torch.manual_seed(0)
    net = net or Net(pause=0.02)
    trainer = trainer_of(folder, steps, keeper, watch, *settings.pop("callbacks", []), **settings)
    trainer.fit(net, Loader(), ckpt_path=ckpt_path, weights_only=True)
    return keeper, watch, net


def relative_errors(restored: Triples, live: Triples) -> dict[str, float]:
    assert len(restored) == len(live)
    errors = {}
    for role in ROLES:
        difference = sum(
            float((a[role] - b[role]).double().square().sum()) for a, b in zip(restored, live, strict=True)
        )
        size = sum(float(b[role].double().square().sum()) for b in live)
        errors[role] = (difference / size) ** 0.5
    return errors


EXACT = dict.fromkeys(ROLES, 0.0)


@pytest.mark.parametrize("foreach", [False, True])
def test_newest_is_restored_bitwise_and_training_goes_on_as_unbroken(tmp_path, foreach):
    keeper, watch, net = drained(tmp_path, net=Net(foreach=foreach, pause=0.005), accumulate_grad_batches=2)
    status = keeper.status()
    assert status["saves"] >= 2 and status["proven"] >= status["saves"] and not status["refused"], status
    saved = torch.load(restore(tmp_path / "store"), weights_only=True)
    step = saved["global_step"]
    assert 60 - step <= 8
    assert relative_errors(saved_triples(saved, net), watch.states[step]) == EXACT
    older = min(Store([tmp_path / "store"]).steps())
    path = tmp_path / "older.ckpt"
    torch.save(Store([tmp_path / "store"]).load(older).tree, path)
    _, resumed, _ = drained(tmp_path / "again", net=Net(foreach=foreach), ckpt_path=path, accumulate_grad_batches=2)
    assert older < 60 and min(resumed.states) >= older and max(resumed.states) == 60
    assert relative_errors(resumed.states[60], watch.states[60]) == EXACT


@pytest.mark.parametrize("target", ["median", "oldest"])
@pytest.mark.parametrize("rollback", ["guarded", "residuals"])
def test_older_targets_are_within_the_printed_bound_or_bitwise(tmp_path, target, rollback):
    options = {"target": target, "rollback": rollback, "num_shards": 6}
    keeper, watch, net = drained(tmp_path, 80, net=Net(pause=0.005), options=options)
    status = keeper.status()
    assert status["saves"] >= 2 and not status["refused"], status
    saved = torch.load(restore(tmp_path / "store"), weights_only=True)
    bound = saved["zo_lightning_drain"]["bound"]
    errors = relative_errors(saved_triples(saved, net), watch.states[saved["global_step"]])
    if rollback == "residuals":
        assert errors == EXACT and set(bound.values()) == {0.0} and status["proven"] >= status["saves"]
    else:
        assert max(errors.values()) > 0.0 and all(errors[role] <= bound[role] < 1e-4 for role in ROLES)


class Seen(Callback):
    """Wraps ``optimizer.step``, and so sees for itself what the optimizer is about to use."""

    def __init__(self) -> None:
        self.grads: list[list[torch.Tensor | None]] = []
        self.rates: list[list[float]] = []

    def on_train_start(self, trainer, pl_module):
        optimizer = trainer.optimizers[0]
        step = optimizer.step

        def recorded(closure=None):
            loss = None if closure is None else closure()
            params = [p for group in optimizer.param_groups for p in group["params"]]
            self.grads.append([None if p.grad is None else p.grad.clone() for p in params])
            self.rates.append([group["lr"] for group in optimizer.param_groups for _ in group["params"]])
            step()
            optimizer.zero_grad(set_to_none=False)  # whenever it comes
            return loss

        optimizer.step = recorded


class Overflowing(Net):
    """Some losses are not finite in float16."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * float("inf") if batch_idx % 7 == 6 else loss


PRECISIONS = {
    "float32": lambda: [],
    "bf16-mixed": lambda: [MixedPrecision("bf16-mixed", "cpu")],
    "16-mixed": lambda: [MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=64.0))],
}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_log_has_the_gradients_that_the_optimizer_saw(tmp_path, monkeypatch, precision):
    """With clipping, accumulation, two groups, a schedule, skipped float16 steps, and gradients that are missing."""
    taken: list[tuple[int, Setup, StepNote, list[torch.Tensor]]] = []
    seen = Seen()
    take = Capture.take

    def recorded(self, setup, step):
        note, tensors = take(self, setup, step)
        taken.append((len(seen.grads) - 1, setup, note, [tensor.clone() for tensor in tensors]))
        return note, tensors

    monkeypatch.setattr(Capture, "take", recorded)
    net = Overflowing(pause=0.005) if precision == "16-mixed" else Net(pause=0.005)
    settings = {"plugins": PRECISIONS[precision](), "accumulate_grad_batches": 2}
    keeper, watch, _ = drained(tmp_path, net=net, callbacks=[seen], **settings)
    status = keeper.status()
    assert status["saves"] >= 2 and status["proven"] >= status["saves"] and not status["refused"], status
    assert (status["skipped_steps"] > 5) == (precision == "16-mixed")
    assert len(taken) > 20
    clipped = 0
    for index, setup, note, tensors in taken:
        grads = tensors[3 * len(setup.captured[note.step]) :]
        clipped += note.clip < 1.0
        for (_, piece), grad in zip(setup.logged[note.step], grads, strict=True):
            whole, hyper = seen.grads[index][piece.param], note.hypers[piece.param]
            assert hyper.skipped == (whole is None) and hyper.lr == seen.rates[index][piece.param]
            assert whole is None or torch.equal(grad, whole.reshape(-1)[piece.start : piece.stop])
    assert clipped > 10
    saved = torch.load(restore(tmp_path / "store"), weights_only=True)
    assert relative_errors(saved_triples(saved, net), watch.states[saved["global_step"]]) == EXACT


class Terminate(Callback):
    """Sends SIGTERM in a step, as a scheduler does."""

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 23:
            os.kill(os.getpid(), signal.SIGTERM)


def test_after_sigterm_a_run_with_dropout_goes_on_bitwise(tmp_path):
    """The checkpoint at the end of the step has the random state of the next one."""
    _, whole, _ = drained(tmp_path / "whole", 40)
    last = InterruptCheckpoint(tmp_path)
    with pytest.raises(SystemExit):
        drained(tmp_path / "cut", 40, callbacks=[Terminate(), last])
    assert torch.load(last.path, weights_only=True)["global_step"] == 24
    _, resumed, _ = drained(tmp_path / "again", 40, ckpt_path=last.path)
    assert min(resumed.states) == 25 and relative_errors(resumed.states[40], whole.states[40]) == EXACT


class Recorded(Logger):
    """Keeps what is logged."""

    name, version = "recorded", 0

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, float]] = []

    def log_metrics(self, metrics, step=None):
        self.seen.append(metrics)

    def log_hyperparams(self, *_, **__):
        pass


def test_loggers_see_what_is_durable_and_verified(tmp_path, caplog):
    logger = Recorded()
    with caplog.at_level(logging.INFO, "zo_lightning"):
        drained(tmp_path, 60, net=Net(pause=0.01), logger=logger, log_every_n_steps=1)
        restore(tmp_path / "store")
    newest = max((metrics for metrics in logger.seen), key=lambda metrics: metrics.get("checkpoint/saved_step", 0))
    assert newest["checkpoint/saved_step"] > 0 and newest["checkpoint/verified_step"] > 0
    assert newest["checkpoint/bound"] == newest["checkpoint/failed_drills"] == 0
    assert "last durable snapshot: step" in caplog.text and "restored step" in caplog.text
    assert caplog.text.count("to the bit") == 2


def test_the_first_window_follows_the_warm_up(tmp_path):
    """Training waits for its host process, so that no step after the warm-up is without a window."""
    torch.manual_seed(0)
    keep = ResilientCheckpoint(tmp_path, drain={"mode": "drain", "num_shards": 4})
    trainer_of(tmp_path, WARM_UP + 4, keep).fit(Net(), Loader())
    assert keep.status()["saved_step"] == WARM_UP + 4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tolerance": 0.0}, "`checkpoint.drain.tolerance`=0.0"),
        ({"mode": "torn"}, "`checkpoint.drain.mode`=torn"),
        ({"num_shards": 1}, "`checkpoint.drain.num_shards`=1"),
    ],
)
def test_a_wrong_setting_names_its_key(tmp_path, options, says):
    with pytest.raises(ConfigError, match=says):
        ResilientCheckpoint(tmp_path, drain=options)


class KillHost(Callback):
    """Ends the host process in the middle of a window."""

    def __init__(self, keep: Keep) -> None:
        self.keep, self.killed = keep, False

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 30 and not self.killed:
            self.keep.keeper.attendant.host._process.kill()
            self.killed = True
        elif trainer.global_step > 31 and self.keep.status()["host_restarts"]:
            time.sleep(0.02)  # until another one is there


def test_a_dead_host_process_is_replaced_and_training_goes_on(tmp_path):
    keep, watch = Keep(tmp_path, drain={"mode": "drain", "num_shards": 4}), Watch()
    net = Net(pause=0.005)
    trainer_of(tmp_path, 200, keep, KillHost(keep), watch).fit(net, Loader())
    status = keep.status()
    assert status["host_restarts"] == 1 and status["saved_step"] > 30, status
    saved = torch.load(restore(tmp_path / "store"), weights_only=True)
    assert relative_errors(saved_triples(saved, net), watch.states[saved["global_step"]]) == EXACT


def test_a_state_that_fits_is_copied_whole_and_said_so(tmp_path, caplog):
    """The measured copy takes less than the tax of a step of 50 ms."""
    with caplog.at_level(logging.INFO, "zo_lightning"):
        _, watch, net = drained(tmp_path, 40, net=Net(pause=0.05), options={"mode": "auto", "num_shards": None})
    assert "plain snapshot" in caplog.text
    saved = torch.load(restore(tmp_path / "store"), weights_only=True)
    assert relative_errors(saved_triples(saved, net), watch.states[saved["global_step"]]) == EXACT


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_killed_run_loses_no_more_than_it_may_and_goes_on_bitwise(tmp_path, kills):
    """Whatever was durable has the bits of the unbroken run at that step; so has the end."""
    steps = 30 * (kills + 1)  # each life gets so far at most
    torch.manual_seed(0)
    watch = Watch()
    with one_thread():  # as in the processes: other threads, other sums
        trainer_of(tmp_path, steps, watch).fit(Net(), Loader())
    chance = random.Random(0)
    durable = 0
    for _ in range(kills):
        last = durable + chance.randint(15, 30)
        killed = run_until(tmp_path, steps, last)
        restored = torch.load(restore(tmp_path / "store"), weights_only=True)
        step = restored["global_step"]
        allowed = 2 * 4 + (WARM_UP if step == durable else 0)
        assert killed - step <= allowed, (killed, step)
        assert relative_errors(saved_triples(restored, Net()), watch.states[step]) == EXACT
        durable = step
    run_until(tmp_path, steps, None)
    end = torch.load(tmp_path / "end.ckpt", weights_only=True)
    assert relative_errors(saved_triples(end, Net()), watch.states[steps]) == EXACT


def run_until(folder: Path, steps: int, last: int | None) -> int:
    """Train in a process of its own, killed at a step or left to its end; the last step that it has told of."""
    command = [sys.executable, "-m", "tests.first_order", str(folder), str(steps)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    step = 0
    for line in process.stdout:
        if line.startswith("step "):
            step = int(line.split()[1])
        if step == last:
            process.kill()
    assert process.wait() == (0 if last is None else -signal.SIGKILL)
    return step
