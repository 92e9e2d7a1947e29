"""``supervise=true``: the command that was typed, as a child of a process that starts it again when it dies."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from zo_lightning.cli.folder import is_begun, named_place
from zo_lightning.cli.ranks import num_ranks
from zo_lightning.errors import ConfigError
from zo_lightning.supervisor import FIRST, SPARE, Report, Settings, Supervisor, heartbeat

log = logging.getLogger(__name__)

_KEY = "supervise"


def spelled_out(arguments: Sequence[str]) -> list[str]:
    """``supervise=true`` as the key that it stands for.

    Examples:
        >>> spelled_out(["supervise=true", "supervise.spare=true"])
        ['supervise.enabled=true', 'supervise.spare=true']
    """
    return [
        argument.replace(f"{_KEY}=", f"{_KEY}.enabled=", 1) if _is_ours(argument) else argument
        for argument in arguments
    ]


def is_wanted(config: DictConfig) -> bool:
    """Whether this process should watch a run, and not be one."""
    return (config.supervise.enabled or config.supervise.spare) and not heartbeat().is_supervised


def supervise(config: DictConfig, arguments: Sequence[str]) -> int:
    """Run the command under supervision; prints a table and, as the last line, JSON.

    Args:
        config: the run's.
        arguments: the command line's.

    Returns:
        The exit code.

    Raises:
        ConfigError: for what cannot be supervised.
    """
    if config.supervise.spare and num_ranks(config) > 1:
        raise ConfigError("`supervise.spare` is for runs of one process: leave it out with several ranks")
    if config.supervise.spare and config.training.kind.value == "adamw":
        raise ConfigError(
            "`supervise.spare` keeps an engine warm, which `training=adamw` has not: `supervise=true` alone"
        )
    place = named_place(config, Path(config.paths.root))
    folder = (place if place is not None and place.is_dir() else Path(config.paths.output_dir)).absolute()
    settings = {key: value for key, value in config.supervise.items() if key != "enabled"}
    report = Supervisor(lambda role: _command(arguments, folder, role), folder, Settings(**settings)).run()
    _show(report)
    return report.exit_code


def _command(arguments: Sequence[str], folder: Path, role: str) -> list[str]:
    kept = [argument for argument in arguments if not argument.startswith((f"{_KEY}=", f"{_KEY}."))]
    if role == SPARE or (role != FIRST and is_begun(folder)):
        kept = [
            *(argument for argument in kept if not argument.startswith("ckpt_path=")),
            f"ckpt_path={_quoted(folder)}",
        ]
    return [sys.executable, "-m", "zo_lightning.cli.train", *kept, f"hydra.run.dir={_quoted(folder)}"]


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("\\", "\\\\").replace("'", "\\'") + "'"


def _is_ours(argument: str) -> bool:
    return argument.startswith(f"{_KEY}=")


def _show(report: Report) -> None:
    if report.incidents:
        table = Table("end", "step", "detected", "training again", "first new step", "steps lost", "by")
        for incident in report.incidents:
            times = (incident.detection, incident.relaunch, incident.first_step)
            lost = "" if incident.steps_lost is None else str(incident.steps_lost)
            by = "spare" if incident.by_spare else "restart"
            shown = ("" if seconds is None else f"{seconds:.2f} s" for seconds in times)
            table.add_row(incident.cause, str(incident.step), *shown, lost, by)
        Console().print(table)
    print(report.line(), flush=True)
