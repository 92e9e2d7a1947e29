"""A life of a run under ``zo-drill``: the run itself, told whom to acknowledge its steps to."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from zo_lightning.cli.folder import is_begun
from zo_lightning.cli.terminal import quiet_libraries
from zo_lightning.config.schemas import DrillConf, RunConf
from zo_lightning.drill.lives import Life, Start
from zo_lightning.drill.processes import Command, Forked

_ACKNOWLEDGE = "zo_lightning.drill.acknowledge.Acknowledge"
_PRELOAD = "zo_lightning.cli.preload"
_RECIPE = "experiment=drill"  # conf/drill.yaml chooses it, too
_RUN = set(RunConf.__dataclass_fields__)
_OWN = set(DrillConf.__dataclass_fields__) - _RUN


def starter(config: DictConfig, overrides: Sequence[str]) -> Start:
    """What starts the lives of a drill.

    Args:
        config: the drill's.
        overrides: of its command line.
    """
    how = config.lives.value
    if how == "auto":
        how = "command" if config.backend._target_.startswith("zo_lightning.backends.vllm") else "fork"
    if how == "command":
        words = command_words(overrides)
        return lambda life: Command([*words, *_arguments(life)], life.log)
    return forks(OmegaConf.masked_copy(config, [key for key in config if key in _RUN]), overrides)


def forks(config: DictConfig, overrides: Sequence[str]) -> Start:
    """What forks the lives of a run.

    Args:
        config: the run's.
        overrides: what it was composed with.
    """
    return lambda life: Forked(_PRELOAD, live, (config, list(overrides), life), life.log)


def composed(overrides: Sequence[str], root: str) -> DictConfig:
    """A run of ``zo-train`` with these overrides, whether or not a command of Hydra's is running."""
    running = GlobalHydra.instance().is_initialized()
    with nullcontext() if running else initialize_config_module("zo_lightning.conf", version_base="1.3"):
        return compose("train", [*overrides, f"paths.root={root}", f"paths.output_dir={root}"])


def command_words(overrides: Sequence[str]) -> list[str]:
    """``zo-train`` for a drill's overrides, behind the interpreter.

    Examples:
        >>> command_words(["kills=3", "backend=vllm"])
        ['-m', 'zo_lightning.cli.train', 'experiment=drill', 'backend=vllm']
    """
    kept = [override for override in overrides if override.lstrip("+").split("=")[0] not in _OWN]
    kept = [override for override in kept if not override.startswith("hydra.")]
    recipe = [] if any(override.startswith("experiment=") for override in kept) else [_RECIPE]
    return ["-m", "zo_lightning.cli.train", *recipe, *kept]


def live(config: DictConfig, overrides: Sequence[str], life: Life) -> None:
    """Train in this process, which was forked for it.

    Args:
        config: of the run, composed.
        overrides: the command line's, to be noted in the run's folder.
        life: this one.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    quiet_libraries()
    import torch

    from zo_lightning.cli.train import run

    torch.set_num_threads(1)  # the same sums in every life
    config.paths.output_dir = str(life.folder)
    for key, value in _settings(life).items():
        OmegaConf.update(config, key, value, force_add=True)
    run(config, overrides=overrides)


def _settings(life: Life) -> dict[str, str | int | None]:
    """What a life has beside the run's own settings, by dotted key."""
    return {
        "ckpt_path": str(life.folder) if is_begun(life.folder) else None,
        "callbacks.acknowledge._target_": _ACKNOWLEDGE,
        "callbacks.acknowledge.file": str(life.lines),
        "callbacks.acknowledge.last": life.kill.number("line") if life.kill else None,
        "callbacks.acknowledge.operation": life.kill.number("file") if life.kill else None,
    }


def _arguments(life: Life) -> list[str]:
    settings = {key: "null" if value is None else value for key, value in _settings(life).items()}
    return [f"hydra.run.dir={life.folder}", *(f"++{key}={value}" for key, value in settings.items())]
