"""A run's records committed again, with the method and model that its saved settings name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf, open_dict

from zo_lightning.checkpoint.places import CHECKPOINT, JOURNAL, has_steps
from zo_lightning.cli.folder import resolve_checkpoint
from zo_lightning.config import instantiate
from zo_lightning.errors import ConfigError

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer

    from zo_lightning.replay import Holder, Replay, Run


@contextmanager
def replaying(config: DictConfig, run: Run, *, without: Collection[int] = ()) -> Iterator[Replay]:
    """A replay of a run, which shows its progress; under ``bank.policy=merge`` on a backend with the base's weights.

    Raises:
        ConfigError: if the configuration does not fit, or the backend cannot be had for a replay.
    """
    from zo_lightning.cli.session import build_method, prepared_model
    from zo_lightning.replay import FactorHolder, Replay

    backend = instantiate(config.backend)
    method, bank = build_method(config, backend.capabilities)
    layout = prepared_model(config).layout
    merges = bank.policy == "merge"
    if merges and "Vllm" in type(backend).__name__:
        raise ConfigError(
            "`bank.policy=merge` writes the base's weights, so that a replay needs them: add `backend=dense` or "
            "`backend=packed`, with the `backend.dtype` of the run"
        )
    holder: Holder = FactorHolder(layout, method, run.entries, config.seed)
    try:
        if merges:
            backend.open(layout, method.direction, method.update, bank)
            holder = backend
        with progress("replaying", run.num_steps) as advance:
            yield Replay(run, holder, without=without, advance=advance)
    finally:
        backend.close()


def rebuilt(config: DictConfig, run: Run, step: int, *, without: Collection[int] = ()) -> Replay:
    """A replay that stands at a step; steps left out are not in the snapshot that it begins from.

    Raises:
        ConfigError: for steps that are not in the journal.
    """
    if unknown := [number for number in without if number not in run.entries or number >= step]:
        raise ConfigError(f"`without` has {unknown}, which are not among the journal's steps before {step}")
    with replaying(config, run, without=without) as replay:
        replay.begin_near(min([step, *without]))
        replay.reach(step)
        replay.keep()
    return replay


def write_checkpoint(config: DictConfig, run: Run, replay: Replay, out: Path) -> None:
    """Write a step as a Lightning checkpoint, for ``zo-export``, ``zo-eval`` and to fork from with ``ckpt_path=FILE``.

    Lightning is led through the recorded steps, so that its loops, the schedule and the data stand as they did; the
    states of callbacks are not in it.

    Args:
        config: the run's.
        run: what was recorded.
        replay: at the step.
        out: the file.

    Raises:
        ConfigError: if the file is there already, or for step 0, which has learned nothing.
    """
    from zo_lightning.cli.session import build
    from zo_lightning.replay import LoopsBackend

    if out.exists():
        raise ConfigError(f"`out={out}` is there already: name a new file")
    snapshot = replay.snapshot
    if not snapshot["version"]:
        raise ConfigError("`step=0` is the base alone: name a step from 1 on")
    session = build(_alone(config), loggers=[])
    session.trainer.fit_loop.epoch_loop.max_steps = snapshot["version"]  # the schedule's length stays the run's
    session.trainer.callbacks.append(_led_by(run, replay))  # type: ignore[attr-defined]
    session.module.max_skipped = snapshot["version"] + 1  # a run that diverged has ended already
    with TemporaryDirectory() as place, progress("leading the loops", snapshot["version"]) as advance:
        backend = LoopsBackend(session.module.backend.capabilities, snapshot, advance)
        session.module.backend = backend  # type: ignore[assignment]
        session.fit(_start(replay, Path(place)))
        session.trainer.save_checkpoint(out, weights_only=False)


def _led_by(run: Run, replay: Replay) -> Callback:
    from lightning.pytorch.callbacks import LambdaCallback

    from zo_lightning.replay import WITHOUT

    def lead(trainer: Trainer, module: LightningModule) -> None:
        trainer.optimizers[0].journal = run.recovered  # type: ignore[attr-defined]

    def mark(trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if replay.without:
            checkpoint[WITHOUT] = sorted(replay.without)

    return LambdaCallback(on_train_start=lead, on_save_checkpoint=mark)


def _alone(config: DictConfig) -> DictConfig:
    """The run's settings for one process that shows nothing and writes nothing by itself."""
    changes: dict[str, Any] = {"strategy": "zo", "devices": 1, "num_nodes": 1, "plugins": None, "accelerator": "cpu"}
    changes |= {"limit_val_batches": 0, "enable_progress_bar": False}
    changes |= {"enable_model_summary": False, "profiler": None, "max_time": None}
    alone: DictConfig = OmegaConf.merge(config)  # type: ignore[assignment]
    with open_dict(alone):
        alone.callbacks, alone.checkpoint = {}, None
        alone.trainer = OmegaConf.merge(alone.trainer, changes)
    return alone


def _start(replay: Replay, place: Path) -> Path | None:
    import torch

    if replay.begun_from is None:
        return None
    torch.save(replay.begun_from.load() | {"callbacks": {}}, place / "start.ckpt")
    return place / "start.ckpt"


@contextmanager
def named_checkpoint(config: DictConfig) -> Iterator[tuple[Path, str]]:
    """The file that ``ckpt_path`` names and how to call it; of a run that was cut, one of its newest step.

    Raises:
        ConfigError: if it names none.
    """
    checkpoint, folder = resolve_checkpoint(config, Path(config.paths.root))
    if checkpoint is None and folder is None:
        raise ConfigError("`ckpt_path` is missing: name a .ckpt file, a run's folder, `last` or `best`")
    if folder is None or not has_steps(folder / JOURNAL):
        assert checkpoint is not None
        yield checkpoint, str(checkpoint.absolute())
        return
    from zo_lightning.replay import read_run

    run = read_run(folder, newest=True)
    for problem in run.recovered.problems:
        log.warning("%s", problem)
    newest = max((saved.step for saved in run.saved), default=0)
    end = folder / CHECKPOINT
    if newest >= run.num_steps and any(saved.step == newest and saved.name == str(end) for saved in run.saved):
        yield end, str(end.absolute())
        return
    step = max(newest, run.num_steps)
    with TemporaryDirectory() as place:
        out = Path(place) / "newest.ckpt"
        write_checkpoint(config, run, rebuilt(config, run, step), out)
        yield out, f"{folder.absolute()} at step {step}"


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal; yields what moves it by one."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
