"""``zo-drill``: prove that no acknowledged step is lost; a table and one line of JSON last."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from zo_lightning.cli.errors import reported
from zo_lightning.cli.life import composed, forks, starter
from zo_lightning.config import register
from zo_lightning.errors import ConfigError

if TYPE_CHECKING:
    from zo_lightning.drill.report import Findings

WINDOWS = 2  # of the drain, that a kill may take: the one that is open, and the one that is being written
FAULTY = 1  # exit code where something is not zero that must be
register()


def main() -> None:
    """Compose and drill."""
    with reported():
        _main()


@hydra.main(version_base="1.3", config_path="pkg://zo_lightning.conf", config_name="drill")
def _main(config: DictConfig) -> None:
    run(config, overrides=HydraConfig.get().overrides.task)


def run(config: DictConfig, *, overrides: Sequence[str] = ()) -> None:
    """Drill and report.

    Args:
        config: the drill's.
        overrides: the command line's, which lives that are commands get too.

    Raises:
        SystemExit: if anything is not zero that must be.
    """
    with reported():
        _check(config)
        folder, began = Path(config.paths.output_dir).absolute(), time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        from zo_lightning.drill.report import publish

        with _progress(config) as progress:
            parts = {part.value: _PARTS[part.value](config, overrides, folder, progress) for part in config.parts}
        facts = {
            "drill_seed": config.drill_seed,
            "seed": config.seed,
            "seconds": round(time.monotonic() - began, 1),
            "folder": str(folder),
        }
        if not publish(parts, facts, folder):
            print(
                f"error: not all is zero that must be: see {folder}, which stays (`drill_seed={config.drill_seed}`)",
                file=sys.stderr,
            )
            raise SystemExit(FAULTY)


def _check(config: DictConfig) -> None:
    if not config.parts:
        raise ConfigError(f"`parts` is empty: choose of {', '.join(_PARTS)}")
    for key in ("kills", "adamw_kills", "images", "manifests"):
        if config[key] < 1:
            raise ConfigError(f"`{key}`={config[key]} must be at least 1")


def _zo(config: DictConfig, overrides: Sequence[str], folder: Path, on_kill: Callable[[], None]) -> Findings:
    from zo_lightning.drill.kills import kills
    from zo_lightning.drill.runs import kill_runs
    from zo_lightning.drill.verdict import judge_zo

    start, moments = starter(config, overrides), kills(config.drill_seed)
    return kill_runs(folder / "zo", start, judge_zo, moments, number=config.kills, on_kill=on_kill)


def _adamw(config: DictConfig, overrides: Sequence[str], folder: Path, on_kill: Callable[[], None]) -> Findings:
    from zo_lightning.drain.keeper import WARM_UP
    from zo_lightning.drill.kills import kills
    from zo_lightning.drill.runs import kill_runs
    from zo_lightning.drill.verdict import judge_adamw

    run = composed(config.adamw, config.paths.root)
    judge = partial(judge_adamw, bound=WINDOWS * run.checkpoint.drain.num_shards, warm_up=WARM_UP)
    moments = kills(config.drill_seed, lines=120, operations=0)  # a process of its own writes the files
    start = forks(run, config.adamw)
    return kill_runs(folder / "adamw", start, judge, moments, number=config.adamw_kills, on_kill=on_kill)


def _flips(config: DictConfig, overrides: Sequence[str], folder: Path, on_kill: Callable[[], None]) -> Findings:
    from zo_lightning.drill import flips

    return flips.drill(folder / "flips", fuzzed=config.manifests, seed=config.drill_seed)


def _crash_images(config: DictConfig, overrides: Sequence[str], folder: Path, on_kill: Callable[[], None]) -> Findings:
    from zo_lightning.drill import power

    return power.drill(folder / "crash_images", cap=config.images, seed=config.drill_seed)


_PARTS = {"zo": _zo, "adamw": _adamw, "flips": _flips, "crash_images": _crash_images}


_KILLS = {"zo": "kills", "adamw": "adamw_kills"}


@contextmanager
def _progress(config: DictConfig) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as progress:
        kills = sum(config[_KILLS[part.value]] for part in config.parts if part.value in _KILLS)
        task = progress.add_task("kills", total=kills)
        yield lambda: progress.advance(task)


if __name__ == "__main__":
    main()
