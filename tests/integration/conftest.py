"""A small run on the fake backend: 50 examples, batches of 4, hence 13 batches an epoch and a ragged last one.

And the configuration of a command on a tiny model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer

import zo_lightning.strategies  # noqa: F401  registers "zo"
from tests.command import TINY, Compose, composer
from zo_lightning.backends.fake import FakeBackend
from zo_lightning.core.method import Method
from zo_lightning.core.types import BankSpec, Score
from zo_lightning.data import ExampleDataModule
from zo_lightning.directions import LowRank
from zo_lightning.estimators import Spsa
from zo_lightning.modules import ZOModule
from zo_lightning.queries import Antithetic
from zo_lightning.updates import Sgd


class Run:
    """Module, data and trainer of one run."""

    def __init__(self, layout: Any, examples: Any, root: Any) -> None:
        self.layout, self.examples, self.root = layout, examples, root

    def module(self, backend: Any = None, **changes: Any) -> ZOModule:
        method = Method(
            direction=changes.pop("direction", LowRank(rank=2, refresh_every=5, cycle=4)),
            query=changes.pop("query", Antithetic(eps=1e-2)),
            estimator=changes.pop("estimator", Spsa()),
            update=changes.pop("update", Sgd(lr=0.3)),
        )
        settings = dict(
            method=method,
            backend=backend or FakeBackend(),
            objective=Score(loss="gold"),
            layout=self.layout,
            bank=BankSpec(rank=2, capacity=8),
            seed=42,
            num_labels=2,
        )
        return ZOModule(**(settings | changes))

    def data(self, batch_size: int = 4, num_dev: int = 10) -> ExampleDataModule:
        dev = self.examples[:num_dev]
        return ExampleDataModule(
            train=self.examples, dev=dev, test=dev, batch_size=batch_size, eval_batch_size=4, seed=42
        )

    def trainer(self, **changes: Any) -> Trainer:
        settings: dict[str, Any] = dict(
            strategy="zo",
            max_steps=40,
            max_epochs=-1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            limit_val_batches=0,
            log_every_n_steps=1,
            default_root_dir=self.root,
        )
        return Trainer(**(settings | changes))

    def open_module(self, backend: Any = None, **changes: Any) -> ZOModule:
        """A module whose backend this caller has opened: what the run learned can be read afterwards."""
        module = self.module(backend, **changes)
        module.backend.open(self.layout, module.method.direction, module.method.update, module.bank)
        return module


@pytest.fixture
def run(small_layout, small_examples, tmp_path) -> Run:
    return Run(small_layout, small_examples, tmp_path)


class Wrapped:
    """A backend with some of its answers changed by a subclass."""

    def __init__(self) -> None:
        self.inner = FakeBackend()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.fixture
def wrapped() -> type[Wrapped]:
    return Wrapped


@pytest.fixture
def composed(tmp_path: Path) -> Compose:
    """A run's configuration with its folder under ``tmp_path``."""
    return composer(tmp_path, TINY)
