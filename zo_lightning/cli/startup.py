"""A run's start in a fresh process for ``zo-bench startup``: prints when each phase ended, and stops after one step."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from zo_lightning.cli.errors import reported
from zo_lightning.cli.terminal import quiet_libraries

if TYPE_CHECKING:
    from omegaconf import DictConfig

_NOTHING_WRITTEN = ("callbacks=none", "logger=none", "checkpoint=none", "paths.output_dir=.")
_PARTS = ("zo_lightning.cli.session", "zo_lightning.models", "zo_lightning.modules")  # and the libraries they need


def main(overrides: Sequence[str] | None = None) -> None:
    """Compose, build and train as ``zo-train`` does, for one step."""
    with reported():
        print(json.dumps(phases(list(sys.argv[1:] if overrides is None else overrides))))


def phases(overrides: list[str]) -> dict[str, float]:
    """When every phase ended, in seconds of the wall clock."""
    ends = {}
    config = _compose(overrides)
    ends["configuration"] = time.time()
    quiet_libraries()
    for part in _PARTS:
        import_module(part)
    ends["imports"] = time.time()
    from zo_lightning.cli.session import build

    session = build(config, loggers=[])
    ends["model and data"] = time.time()
    with session.engine():
        ends["engine start"] = time.time()
        backend = session.module.backend
        backend.digest(), backend.snapshot()  # as zo-train has them before it fits
        session.trainer.callbacks.append(_first_step(ends))  # type: ignore[attr-defined]
        session.fit(None)
    return ends


def _compose(overrides: list[str]) -> DictConfig:
    from hydra import compose, initialize_config_module

    from zo_lightning.config import register

    register()
    with initialize_config_module("zo_lightning.conf", version_base="1.3"):
        return compose("bench", [*overrides, *_NOTHING_WRITTEN])


def _first_step(ends: dict[str, float]) -> Any:
    from lightning.pytorch import Callback

    class FirstStep(Callback):
        """Notes the end of the first step and ends the run."""

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            ends.setdefault("first step", time.time())
            trainer.should_stop = True

    return FirstStep()


if __name__ == "__main__":
    main()
