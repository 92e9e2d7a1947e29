import errno
import math
import os
import signal
from dataclasses import replace

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from zo_lightning.callbacks.interrupt_checkpoint import InterruptCheckpoint
from zo_lightning.core.types import BankSpec, Layout, MatrixSpec
from zo_lightning.directions import LowRank
from zo_lightning.errors import ConfigError, DivergedError, EngineError
from zo_lightning.queries import Antithetic
from zo_lightning.updates import Sgd

ACCUMULATE = [1, 2]


def every_step(folder):
    return ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)


def fit(run, module=None, *, accumulate=1, callbacks=(), ckpt_path=None, **settings):
    module = module or run.open_module()
    settings = dict(max_steps=40, accumulate_grad_batches=accumulate, limit_val_batches=1, **settings)
    if accumulate == 2:  # validation in the middle of windows, and checkpoints there
        settings["val_check_interval"] = 3
    saves = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    trainer = run.trainer(callbacks=list(callbacks), enable_checkpointing=saves, **settings)
    trainer.fit(module, run.data(), ckpt_path=ckpt_path)
    return trainer, module


def same(first, second):
    one, two = first.backend.snapshot(), second.backend.snapshot()
    assert one["slots"] == two["slots"] and one["version"] == two["version"]
    return torch.equal(one["left"], two["left"])


@pytest.mark.parametrize("accumulate", ACCUMULATE)
def test_resuming_from_every_step_ends_bitwise_where_the_unbroken_run_does(run, accumulate):
    whole, unbroken = fit(run, accumulate=accumulate, callbacks=[every_step(run.root)])
    assert whole.global_step == 40
    for step in range(1, 40):
        trainer, module = fit(run, accumulate=accumulate, ckpt_path=run.root / f"step={step}.ckpt")
        assert trainer.global_step == module.backend.version == int(module.version) == 40, step
        assert trainer.current_epoch == whole.current_epoch, step
        assert same(module, unbroken), step


def test_checkpoints_of_validation_and_epoch_ends_resume_exactly(run):
    """Windows of two and validation every three batches: half of these checkpoints fall into an open window."""
    at_validation = ModelCheckpoint(run.root, filename="val-{epoch}-{step}", monitor="val/loss", save_top_k=-1)
    at_epoch_end = ModelCheckpoint(
        run.root, filename="end-{epoch}", every_n_epochs=1, save_top_k=-1, save_on_train_epoch_end=True
    )
    _, unbroken = fit(run, accumulate=2, callbacks=[at_validation, at_epoch_end])
    names = sorted(path.stem for path in run.root.glob("*.ckpt"))
    assert len(names) > 20
    for name in names:
        trainer, module = fit(run, accumulate=2, ckpt_path=run.root / f"{name}.ckpt")
        assert trainer.global_step == module.backend.version == 40 and same(module, unbroken), name


def test_limited_epochs_and_schedules_resume_exactly(run):
    def schedule(optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)

    settings = dict(limit_train_batches=5)
    _, unbroken = fit(run, run.open_module(scheduler=schedule), callbacks=[every_step(run.root)], **settings)
    for step in (3, 5, 9, 10, 11, 39):
        checkpoint = run.root / f"step={step}.ckpt"
        _, module = fit(run, run.open_module(scheduler=schedule), ckpt_path=checkpoint, **settings)
        assert same(module, unbroken), step


def test_checkpoints_load_with_weights_only(run):
    fit(run, callbacks=[every_step(run.root)], max_time={"minutes": 5})
    checkpoint = torch.load(run.root / "step=7.ckpt", weights_only=True)
    assert set(checkpoint["zo_lightning"]) == {"model", "model_digest", "seed", "method", "bank", "digest"}
    assert checkpoint["state_dict"]["version"] == 7


def test_skipped_steps_are_still_counted_after_a_resume(run, wrapped):
    class Nan(wrapped):
        def evaluate(self, requests):
            answers = self.inner.evaluate(requests)
            if self.inner.version < 3 or len(requests) == 1:
                return answers
            return tuple(replace(seen, losses=(math.nan,) * len(seen.losses)) for seen in answers)

    with pytest.raises(DivergedError):
        fit(run, run.open_module(Nan(), max_skipped=6), callbacks=[every_step(run.root)])
    module = run.open_module(Nan(), max_skipped=6)
    with pytest.raises(DivergedError):
        fit(run, module, ckpt_path=run.root / "step=5.ckpt")
    assert module.backend.version == 9
    _, module = fit(run, ckpt_path=run.root / "step=5.ckpt")
    assert module.optimizers(use_pl_optimizer=False).num_skipped == 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (dict(query=Antithetic(eps=1e-3)), r"`query\.eps`=0\.01, not 0\.001"),
        (dict(direction=LowRank(rank=1, refresh_every=5, cycle=4)), r"`direction\.rank`=2, not 1"),
        (dict(update=Sgd(lr=0.1)), r"`update\.lr`=0\.3, not 0\.1"),
        (
            dict(bank=BankSpec(rank=2, capacity=2), direction=LowRank(rank=2, refresh_every=5, cycle=1)),
            r"bank\.capacity",
        ),
        (dict(seed=7), r"`seed`=42, not 7"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_with_the_key(run, changes, named):
    fit(run, callbacks=[every_step(run.root)])
    with pytest.raises(ConfigError, match=named):
        fit(run, run.open_module(**changes), ckpt_path=run.root / "step=7.ckpt")


def test_a_checkpoint_of_another_model_or_program_is_refused(run):
    fit(run, callbacks=[every_step(run.root)])
    checkpoint = torch.load(run.root / "step=7.ckpt", weights_only=True)
    del checkpoint["zo_lightning"]
    torch.save(checkpoint, run.root / "stock.ckpt")
    with pytest.raises(ConfigError, match="ckpt_path"):
        fit(run, ckpt_path=run.root / "stock.ckpt")
    run.layout = Layout(model="other", matrices=(MatrixSpec(name="a", rows=6, cols=4),), num_parameters=24)
    with pytest.raises(ConfigError, match="model"):
        fit(run, ckpt_path=run.root / "step=7.ckpt")


class At(Callback):
    """Does something at one batch."""

    def __init__(self, number, action, hook="on_train_batch_start"):
        self.left, self.action = number, action
        setattr(self, hook, self.hooked)

    def hooked(self, *args):
        self.left -= 1
        if self.left == 0:
            self.action()


def ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


def fail():
    raise RuntimeError("boom")


HOOKS = ["on_train_batch_start", "on_after_backward", "on_before_optimizer_step", "on_train_batch_end"]


@pytest.mark.parametrize("hook", [*HOOKS, "on_validation_batch_start"])
@pytest.mark.parametrize("accumulate", ACCUMULATE)
@pytest.mark.parametrize(("action", "raised"), [(ctrl_c, SystemExit), (fail, RuntimeError)])
def test_a_run_cut_anywhere_resumes_to_the_same_bits(run, hook, accumulate, action, raised):
    _, unbroken = fit(run, accumulate=accumulate)
    for number in (2, 3) if hook == "on_validation_batch_start" else (4, 13, 14):
        with pytest.raises(raised):
            fit(run, accumulate=accumulate, callbacks=[InterruptCheckpoint(run.root), At(number, action, hook)])
        trainer, module = fit(run, accumulate=accumulate, ckpt_path=run.root / "last.ckpt")
        assert trainer.global_step == module.backend.version == 40 and same(module, unbroken), number


def test_a_resumed_run_cut_before_its_first_step_loses_nothing(run):
    _, unbroken = fit(run, accumulate=2, callbacks=[every_step(run.root)])
    with pytest.raises(RuntimeError):
        cut = [InterruptCheckpoint(run.root), At(2, fail)]
        fit(run, accumulate=2, callbacks=cut, ckpt_path=run.root / "step=9.ckpt")
    assert torch.load(run.root / "last.ckpt", weights_only=True)["global_step"] == 9
    _, module = fit(run, accumulate=2, ckpt_path=run.root / "last.ckpt")
    assert same(module, unbroken)


def test_ctrl_c_lets_the_step_end_and_the_second_one_does_not(run):
    once = At(6, ctrl_c)
    with pytest.raises(SystemExit):
        fit(run, callbacks=[InterruptCheckpoint(run.root), once])
    assert torch.load(run.root / "last.ckpt", weights_only=True)["global_step"] == 6
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(SystemExit):
        fit(run, callbacks=[InterruptCheckpoint(run.root), At(9, lambda: (ctrl_c(), ctrl_c()))])
    assert torch.load(run.root / "last.ckpt", weights_only=True)["global_step"] == 6


def test_ctrl_c_works_as_before_after_a_run(run):
    handler = signal.getsignal(signal.SIGINT)
    fit(run, callbacks=[InterruptCheckpoint(run.root)])
    assert signal.getsignal(signal.SIGINT) is handler
    with pytest.raises(RuntimeError):
        fit(run, callbacks=[InterruptCheckpoint(run.root), At(2, fail)])
    assert signal.getsignal(signal.SIGINT) is handler


def raising(error):
    def action():
        raise error

    return action


@pytest.mark.parametrize("error", [EngineError("dead"), DivergedError("nan")])
def test_a_dead_engine_or_a_diverged_run_keeps_the_earlier_file(run, error):
    (run.root / "last.ckpt").write_bytes(b"earlier")
    with pytest.raises(type(error)):
        fit(run, callbacks=[InterruptCheckpoint(run.root), At(5, raising(error))])
    assert (run.root / "last.ckpt").read_bytes() == b"earlier"


@pytest.mark.parametrize("changes", [dict(seed=7), dict(query=Antithetic(eps=1.0))])
def test_a_refused_resume_keeps_the_file_it_came_from(run, changes):
    with pytest.raises(SystemExit):
        fit(run, callbacks=[InterruptCheckpoint(run.root), At(6, ctrl_c)])
    before = (run.root / "last.ckpt").read_bytes()
    with pytest.raises(ConfigError):
        module = run.open_module(**changes)
        fit(run, module, callbacks=[InterruptCheckpoint(run.root)], ckpt_path=run.root / "last.ckpt")
    with pytest.raises(RuntimeError):  # before the first step of a fresh run there is nothing to save
        fit(run, callbacks=[InterruptCheckpoint(run.root), At(1, fail)])
    assert (run.root / "last.ckpt").read_bytes() == before


def test_a_full_disk_keeps_the_earlier_file_and_says_so(run, monkeypatch, caplog):
    (run.root / "last.ckpt").write_bytes(b"earlier")

    def full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("zo_lightning.checkpoint.files._LocalFile.sync", full)
    with pytest.raises(SystemExit):
        fit(run, callbacks=[InterruptCheckpoint(run.root), At(6, ctrl_c)])
    assert (run.root / "last.ckpt").read_bytes() == b"earlier"
    assert "No space left on device" in caplog.text and "unchanged" in caplog.text
    assert sorted(path.name for path in run.root.iterdir()) == ["last.ckpt"]


def test_a_failing_checkpoint_callback_still_leaves_an_exact_interrupt_checkpoint(run, monkeypatch):
    _, unbroken = fit(run)
    periodic = every_step(run.root / "periodic")
    monkeypatch.setattr(periodic, "_save_checkpoint", lambda *args: At(1, raising(OSError("full"))).hooked())
    with pytest.raises(OSError, match="full"):
        fit(run, callbacks=[InterruptCheckpoint(run.root), periodic])
    _, module = fit(run, ckpt_path=run.root / "last.ckpt")
    assert same(module, unbroken)
