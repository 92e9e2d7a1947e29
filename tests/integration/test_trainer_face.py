"""Lightning's stock settings and callbacks do what they say; those that cannot are refused.

More of them are in ``test_lightning.py`` (schedules, accumulation, clipping, ``fast_dev_run``, ``overfit_batches``,
``max_time``, ``max_epochs``) and ``test_resume.py``.
"""

from __future__ import annotations

import csv
import logging
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
    Timer,
    WeightAveraging,
)

from tests.command import Compose, bank, message
from zo_lightning.callbacks.bank_summary import BankSummary
from zo_lightning.cli import train as zo_train
from zo_lightning.cli.trainer import build_trainer
from zo_lightning.errors import ConfigError


class Batches(Callback):
    """Counts the batches of every stage, and where in the run each validation ended."""

    def __init__(self) -> None:
        self.train = self.val = self.test = 0
        self.validated_at: list[int] = []

    def on_train_batch_end(self, *args) -> None:
        self.train += 1

    def on_validation_batch_end(self, *args) -> None:
        self.val += 1

    def on_test_batch_end(self, *args) -> None:
        self.test += 1

    def on_validation_end(self, trainer, module) -> None:
        self.validated_at.append(trainer.global_step)


def fit(run, module=None, callbacks=(), **settings):
    """Fit with callbacks; the factors of the end, and the trainer."""
    module = module or run.open_module()
    trainer = run.trainer(callbacks=list(callbacks), **settings)
    trainer.fit(module, run.data())
    return trainer, module.backend.snapshot()["left"]


# --- validation


def test_the_best_checkpoint_is_the_version_that_was_scored(run):
    """Validation in the middle of accumulation windows: the weights saved are those that had the loss."""
    scored: dict[int, float] = {}

    class Scores(Callback):
        def on_validation_end(self, trainer, module):
            scored[module.backend.version] = float(trainer.callback_metrics["val/loss"])

    best = ModelCheckpoint(run.root, filename="best", monitor="val/loss", mode="max", save_top_k=1)
    settings = dict(accumulate_grad_batches=2, val_check_interval=3, limit_val_batches=1.0, enable_checkpointing=True)
    fit(run, callbacks=[Scores(), best], **settings)
    saved = torch.load(best.best_model_path, weights_only=True)
    version = saved["zo_lightning"]["bank"]["version"]
    assert len(scored) > 10
    assert version == saved["global_step"] == max(scored, key=scored.__getitem__)
    (again,) = run.trainer(limit_val_batches=1.0).validate(
        run.open_module(), run.data(), ckpt_path=best.best_model_path, verbose=False
    )
    assert again["val/loss"] == scored[version] == float(best.best_model_score)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (dict(val_check_interval=5), [5, 10, 18, 23]),  # 13 batches an epoch
        (dict(val_check_interval=5, check_val_every_n_epoch=None), [5, 10, 15, 20, 25]),
        (dict(val_check_interval=0.5), [6, 12, 19, 25]),
        (dict(check_val_every_n_epoch=2), [26]),
    ],
    ids=str,
)
def test_validation_comes_when_it_is_asked_for(run, settings, expected):
    seen = Batches()
    fit(run, callbacks=[seen], max_steps=26, limit_val_batches=1.0, **settings)
    assert seen.validated_at == expected


def test_sanity_validation_scores_some_batches_and_changes_nothing(run):
    seen = Batches()
    _, plain = fit(run, max_steps=5)
    trainer, checked = fit(run, callbacks=[seen], max_steps=5, num_sanity_val_steps=2, limit_val_batches=1.0)
    assert seen.val == 2 and "val/loss" not in trainer.callback_metrics
    assert torch.equal(plain, checked)


def test_limits_are_numbers_or_shares_of_batches(run):
    for limits, train, val in ((4, 4, 2), (0.5, 6, 1)):
        seen, limit_val = Batches(), 2 if limits == 4 else 0.5
        settings = dict(max_steps=-1, max_epochs=1, limit_train_batches=limits, limit_val_batches=limit_val)
        fit(run, callbacks=[seen], **settings)
        assert (seen.train, seen.val) == (train, val)
    seen = Batches()
    run.trainer(limit_test_batches=2, callbacks=[seen]).test(run.module(), run.data(), verbose=False)
    assert seen.test == 2


# --- length


def test_min_steps_outlasts_early_stopping(run):
    def stop():
        return EarlyStopping("val/loss", mode="max", patience=1)  # learning is what stops it

    settings = dict(val_check_interval=2, limit_val_batches=1.0)
    assert fit(run, callbacks=[stop()], **settings)[0].global_step == 4
    assert fit(run, callbacks=[stop()], min_steps=20, **settings)[0].global_step == 20


def test_accumulation_may_change_with_the_epoch(run):
    seen = Batches()
    schedule = GradientAccumulationScheduler({0: 1, 1: 4})
    trainer, _ = fit(run, callbacks=[schedule, seen], max_steps=-1, max_epochs=2)
    assert seen.train == 26 and trainer.global_step == 13 + 4  # the second epoch: three windows of four, one of one


# --- debugging


def test_deterministic_runs_are_bitwise_equal(run):
    _, first = fit(run, deterministic=True)
    _, second = fit(run, deterministic=True)
    torch.use_deterministic_algorithms(False)
    assert first.any() and torch.equal(first, second)


@pytest.mark.parametrize("settings", [dict(detect_anomaly=True), dict(profiler="simple")], ids=str)
def test_watching_a_run_does_not_change_it(run, settings):
    _, plain = fit(run, max_steps=8)
    _, watched = fit(run, max_steps=8, **settings)
    assert torch.equal(plain, watched)


def test_barebones_trains_the_same(run):
    _, plain = fit(run, max_steps=8)
    module = run.open_module()
    trainer = Trainer(strategy="zo", max_steps=8, max_epochs=-1, limit_val_batches=0, barebones=True)
    trainer.fit(module, run.data())
    assert torch.equal(module.backend.snapshot()["left"], plain)


# --- callbacks that cannot work


@pytest.mark.parametrize(
    "callback",
    [
        StochasticWeightAveraging(swa_lrs=0.1),
        WeightAveraging(),
        EMAWeightAveraging(),
        ModelPruning("l1_unstructured"),
        BackboneFinetuning(),
        LearningRateFinder(),
        BatchSizeFinder(),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_callbacks_that_change_torch_parameters_are_refused_before_the_backend_opens(run, callback):
    module = run.module()
    module.backend.open = lambda *args: pytest.fail("opened")
    with pytest.raises(ConfigError, match=f"`callbacks`: {type(callback).__name__}"):
        run.trainer(callbacks=[callback]).fit(module, run.data())


# --- the same from the command line


def test_the_presets_of_callbacks_run(composed: Compose, tmp_path: Path, capsys, caplog):
    presets = "callbacks=[default,early_stopping,best_checkpoint,learning_rate_monitor,rich_progress_bar]"
    shown = ["trainer.enable_model_summary=true", "trainer.profiler=simple"]
    watched = ["trainer.val_check_interval=2", "trainer.check_val_every_n_epoch=null", "trainer.max_steps=8"]
    stop = ["callbacks.early_stopping.patience=1", "update.lr=1e-2"]  # much too large: the loss rises at once
    with caplog.at_level(logging.INFO):
        zo_train.run(composed(presets, *shown, *watched, *stop))
    printed = capsys.readouterr()
    for wanted in ("frozen base", "492,416", "bank", "rank 2", "left factors"):
        assert wanted in printed.err
    assert "val/accuracy" in printed.out  # Lightning's own bar
    assert "run_training_batch" in caplog.text  # the profile
    rows = list(csv.DictReader((tmp_path / "run" / "csv" / "version_0" / "metrics.csv").open()))
    losses = {int(row["step"]) + 1: float(row["val/loss"]) for row in rows if row["val/loss"]}
    assert "Monitored metric val/loss did not improve" in caplog.text and max(losses) < 8
    assert bank(tmp_path / "run", "best")["version"] == min(losses, key=losses.__getitem__)
    assert [float(row["lr-ZOOptimizer"]) for row in rows if row["lr-ZOOptimizer"]] == [1e-2] * max(losses)


def test_callbacks_go_away_by_name(composed: Compose):
    assert "progress_bar" not in composed("~callbacks.progress_bar").callbacks
    assert set(composed("callbacks=none", tiny=False).callbacks) == set()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["trainer=gpu"], ["CUDAAccelerator", "not available"]),
        (["trainer.val_check_interval=0.5", "trainer.check_val_every_n_epoch=null"], ["val_check_interval"]),
        (["trainer.gradient_clip_algorithm=length"], ["gradient_clip_algorithm"]),
        (["+trainer.barebones=true"], ["barebones"]),
        (["callbacks=[default,learning_rate_monitor]", "logger=none"], ["LearningRateMonitor", "logger"]),
        (
            ["+callbacks.swa={_target_: lightning.pytorch.callbacks.StochasticWeightAveraging, swa_lrs: 0.1}"],
            ["callbacks", "StochasticWeightAveraging", "scheduler"],
        ),
    ],
    ids=lambda value: value[0],
)
def test_settings_that_lightning_refuses_are_one_message(composed: Compose, capsys, overrides, said):
    if overrides == ["trainer=gpu"] and torch.cuda.is_available():
        pytest.skip("there is a GPU, so nothing is refused")
    printed = message(capsys, lambda: zo_train.run(composed(*overrides)))
    for word in said:
        assert word in printed


@pytest.mark.parametrize(("trainer", "device"), [("default", "auto"), ("cpu", "cpu"), ("gpu", "cuda")])
def test_trainer_presets_place_the_model_not_the_loop(composed: Compose, trainer: str, device: str):
    config = composed(f"trainer={trainer}")
    assert config.backend.device == config.trainer.accelerator == device
    assert config.trainer.strategy == "zo"


def test_the_summary_counts_the_base_and_the_bank(run, capsys):
    fit(run, callbacks=[BankSummary()], max_steps=1, enable_model_summary=True)
    printed = capsys.readouterr().err
    for wanted in ("quadratic", "39", "rank 8: 4 slots, cyclic", "144", "88"):  # (11 + 7) * 8 and 11 * 8
        assert wanted in printed


def test_a_limit_of_time_is_read_as_lightning_writes_it(composed: Compose):
    trainer = build_trainer(composed("trainer.max_time=00:00:30:00", "logger=none"))
    (timer,) = (callback for callback in trainer.callbacks if isinstance(callback, Timer))
    assert timer.time_remaining() == 1800
