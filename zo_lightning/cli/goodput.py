"""``zo-goodput SUBCOMMAND``: what share of a cluster's time becomes training, and what would raise it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

from zo_lightning.cli import goodput_advise
from zo_lightning.cli.errors import reported
from zo_lightning.cli.goodput_answers import ANSWERS, Answer
from zo_lightning.cli.goodput_scenario import scenario_of
from zo_lightning.cli.subcommands import take_subcommand, with_override
from zo_lightning.config import register
from zo_lightning.errors import ConfigError
from zo_lightning.goodput.checks import MOST, refuse_outside
from zo_lightning.goodput.model import TARGETS
from zo_lightning.goodput.tables import write_csv

SUBCOMMANDS = {
    "table": "goodput and losses of every target at every number of `devices`, each with its best interval",
    "sweep": "goodput against the interval, of `ks`, for every target",
    "breakdown": "where the time goes: losses on top of each other, against the number of `devices`",
    "what-if": "what single changes would be worth in points of goodput: a faster restart, a smaller drain, ...",
    "advise": "how to checkpoint the run of `run_dir`, by what it has measured, or one that is described by flags",
}
register()


def main() -> None:
    """Take the subcommand off the command line; the rest is Hydra's."""
    with reported():
        command, rest = take_subcommand("zo-goodput SUBCOMMAND [key=value ...]", SUBCOMMANDS)
        if command == "advise":
            sys.argv[1:] = rest
            goodput_advise.main()
        else:
            sys.argv[1:] = with_override(rest, f"command={command}")
            _main()


@hydra.main(version_base="1.3", config_path="pkg://zo_lightning.conf", config_name="goodput")
def _main(config: DictConfig) -> None:
    run(config)


def run(config: DictConfig) -> None:
    """Answer what the subcommand asks, write the files, and print one line of JSON last."""
    with reported():
        _check(config)
        answer = ANSWERS[config.command](config, scenario_of(config))
        files: list[str] = []
        try:
            if config.out is not None:
                files = _written(config, answer)
                print(f"written: {', '.join(files)}")
        except OSError as error:
            raise _no_folder(config.out, error) from error
        finally:
            print(json.dumps({"command": config.command, "rows": answer.rows, "files": files}))


def _written(config: DictConfig, answer: Answer) -> list[str]:
    """Files in the folder of ``out``; those of an earlier answer stay until all of this one are whole."""
    folder = Path(config.out).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".new-") as name:
        table = Path(name) / f"{config.command.replace('-', '_')}.csv"
        write_csv(answer.rows, table)
        made = [table, *(path for draw in answer.pictures for path in draw(Path(name)))]
        return [str(path.replace(folder / path.name)) for path in made]


def _no_folder(out: str, error: OSError) -> ConfigError:
    return ConfigError(f"`out`={out}: nothing can be written there ({error.strerror}); name another folder")


def _check(config: DictConfig) -> None:
    """Refuse what no scenario can say of itself, before anything is computed."""
    if config.failures < 0 or config.failures == 1:
        raise ConfigError(f"`failures`={config.failures}: 2 or more, or 0 for the closed forms alone")
    refuse_outside("seed", config.seed, 0)
    if config.days is not None:
        refuse_outside("days", config.days, 0, MOST, above=True)
    for key in ("devices", "targets", "ks"):
        if config[key] is not None and not config[key]:
            raise ConfigError(f"`{key}` is empty: name some")
    for key in ("devices", "ks"):
        _check_steps(key, config[key] or [])
    if config.out is not None:
        _check_folder(config.out)
    for key, given in _intervals(config).items():
        _check_steps(key, given if isinstance(given, list) else [given])


def _check_folder(out: str) -> None:
    """Refuse what will not be a folder to write into; none is made before there is something to write."""
    folder = Path(out).expanduser()
    there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    if not out or not there.is_dir():
        raise ConfigError(f"`out`={out} is no folder: name one")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"`out`={out}: nothing can be written into {there}; name another folder")


def _intervals(config: DictConfig) -> dict[str, Any]:
    """What is given as ``k``, by its full key."""
    if not isinstance(config.k, DictConfig):
        return {} if config.k is None else {"k": config.k}
    given: dict[Any, Any] = OmegaConf.to_container(config.k)  # type: ignore[assignment]
    for target in given:
        if target not in TARGETS:
            raise ConfigError(f"`k.{target}`: there is no such target; choose of {', '.join(TARGETS)}")
    return {f"k.{target}": numbers for target, numbers in given.items()}


def _check_steps(key: str, numbers: Sequence[Any]) -> None:
    for number in numbers:
        if not isinstance(number, int) or number < 1:
            raise ConfigError(f"`{key}`={number}: a whole number, 1 or more")


if __name__ == "__main__":
    main()
