"""``zo-goodput SUBCOMMAND``: what share of a cluster's time becomes training, and what would raise it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from zo_lightning.cli.errors import reported
from zo_lightning.cli.goodput_answers import ANSWERS, Answer
from zo_lightning.cli.goodput_scenario import scenario_of
from zo_lightning.cli.subcommands import take_subcommand, with_override
from zo_lightning.config import register
from zo_lightning.errors import ConfigError
from zo_lightning.goodput.tables import write_csv

SUBCOMMANDS = {
    "table": "goodput and losses of every target at every number of `devices`, each with its best interval",
    "sweep": "goodput against the interval, of `ks`, for every target",
    "breakdown": "where the time goes: losses on top of each other, against the number of `devices`",
    "what-if": "what single changes would be worth in points of goodput: a faster restart, a smaller drain, ...",
}
register()


def main() -> None:
    """Take the subcommand off the command line; the rest is Hydra's."""
    with reported():
        command, rest = take_subcommand("zo-goodput SUBCOMMAND [key=value ...]", SUBCOMMANDS)
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
        files = _written(config, answer)
        print(json.dumps({"command": config.command, "rows": answer.rows, "files": files}))


def _written(config: DictConfig, answer: Answer) -> list[str]:
    if config.out is None:
        return []
    folder = Path(config.out).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / f"{config.command.replace('-', '_')}.csv"
    write_csv(answer.rows, table)
    files = [str(path) for path in (table, *(path for draw in answer.pictures for path in draw(folder)))]
    print(f"written: {', '.join(files)}")
    return files


def _check(config: DictConfig) -> None:
    if config.failures < 0 or config.failures == 1:
        raise ConfigError(f"`failures`={config.failures}: 2 or more, or 0 for the closed forms alone")
    for key in ("devices", "targets", "ks"):
        if config[key] is not None and not config[key]:
            raise ConfigError(f"`{key}` is empty: name some")
    for key in ("devices", "ks"):
        _check_numbers(key, config[key] or [])
    for key, given in (config.k or {}).items() if isinstance(config.k, DictConfig) else [("", config.k)]:
        numbers: Any = given if isinstance(given, list | tuple) or hasattr(given, "_content") else [given]
        _check_numbers(f"k.{key}" if key else "k", [] if given is None else numbers)


def _check_numbers(key: str, numbers: Any) -> None:
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ConfigError(f"`{key}`={number}: whole numbers, 1 or more")


if __name__ == "__main__":
    main()
