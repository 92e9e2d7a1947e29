"""Lightning runs on a real engine: exact resume from every step, accumulation, the frozen base, memory."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

import zo_lightning.strategies  # noqa: F401  registers "zo"
from tests.backends import STAGES, Opened, Row
from zo_lightning.core.method import Method
from zo_lightning.core.types import Example, Score
from zo_lightning.data import ExampleDataModule
from zo_lightning.directions import LowRank
from zo_lightning.estimators import Spsa
from zo_lightning.modules import ZOModule
from zo_lightning.queries import Antithetic
from zo_lightning.updates import Sgd

pytestmark = [pytest.mark.vllm, pytest.mark.parametrize("opened", [Row("vllm")], indirect=True, ids=str)]

STEPS = 40
EXAMPLES = tuple(
    Example(prompt=tuple((7 * i + 3 * j) % 250 for j in range(5 + i % 9)), options=((260,), (261,)), label=i % 2)
    for i in range(50)
)  # batches of 4: 13 an epoch, the last one of two examples


def fit(subject: Opened, folder: Path, *, start: Path | None = None, batch_size: int = 4, **settings: Any) -> Trainer:
    """Train from version 0, or from a checkpoint, on the engine that is open."""
    subject.reset()
    module = ZOModule(
        method=Method(
            direction=LowRank(rank=2, refresh_every=7, cycle=STAGES),
            query=Antithetic(eps=1e-3),
            estimator=Spsa(),
            update=Sgd(lr=1e-5),
        ),
        backend=subject.backend,
        objective=Score(),
        layout=subject.layout,
        bank=subject.bank,
        seed=42,
        num_labels=2,
    )
    data = ExampleDataModule(train=EXAMPLES, batch_size=batch_size, eval_batch_size=4, seed=42)
    settings = {"max_steps": STEPS, "max_epochs": -1, "enable_checkpointing": False} | settings
    trainer = Trainer(
        strategy="zo",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **settings,
    )
    trainer.fit(module, data, ckpt_path=start, weights_only=True)
    assert trainer.global_step == settings["max_steps"] == subject.backend.version
    return trainer


def test_resuming_from_every_step_ends_bitwise_where_the_unbroken_run_does(subject: Opened, tmp_path: Path):
    every_step = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    fit(subject, tmp_path, enable_checkpointing=True, callbacks=[every_step])
    unbroken = subject.backend.snapshot()
    assert unbroken["left"].abs().max() > 0
    for step in range(1, STEPS):
        fit(subject, tmp_path, start=tmp_path / f"step={step}.ckpt")
        resumed = subject.backend.snapshot()
        assert resumed["slots"] == unbroken["slots"], step
        assert torch.equal(resumed["left"], unbroken["left"]), step


def test_two_half_batches_are_one_batch_within_rebatching_noise(subject: Opened, tmp_path: Path):
    """13 batches an epoch: the last window of each epoch holds one. Noise: the same run, its batches reordered."""
    fit(subject, tmp_path, batch_size=8, max_steps=14)
    whole = subject.backend.snapshot()["left"]
    fit(subject, tmp_path, accumulate_grad_batches=2, max_steps=14)
    halves = subject.backend.snapshot()["left"]
    error = float((whole - halves).norm() / whole.norm())
    print(f"accumulated against whole batches: relative difference {error:.1e}")
    # A loss carries about 1e-7 of rounding, which the difference quotient divides by 2 eps.
    assert error < 1e-2


def test_the_base_survives_training_and_twelve_wraps_of_the_bank(subject: Opened, tmp_path: Path):
    before = subject.backend.digest()
    assert before.num_parameters == subject.layout.num_parameters
    steps = 7 * STAGES * 12 + 7  # every stage comes round twelve times
    fit(subject, tmp_path, max_steps=steps)
    assert len(subject.backend.snapshot()["slots"]) == STAGES
    assert subject.backend.digest() == before


@pytest.mark.slow
def test_memory_stays_over_300_steps(subject: Opened, tmp_path: Path):
    fit(subject, tmp_path, max_steps=50)
    sizes = [resident_mib()]
    for _ in range(6):
        fit(subject, tmp_path, max_steps=50)
        gc.collect()
        sizes.append(resident_mib())
    growth = sizes[-1] / sizes[0] - 1
    shown = [round(size) for size in sizes]
    print(f"resident memory before and during 300 further steps, MiB: {shown}, growth {growth:.2%}")
    assert math.isfinite(growth) and growth < 0.02


def resident_mib() -> float:
    """Resident memory of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
