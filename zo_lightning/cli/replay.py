"""``zo-replay SUBCOMMAND RUN``: rebuild any step of a run from its journal, without a forward pass."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import hydra
from hydra import compose
from omegaconf import DictConfig

from zo_lightning.cli.errors import FAILED, reported
from zo_lightning.cli.export import check_out, export
from zo_lightning.cli.overrides import with_saved_overrides
from zo_lightning.cli.rebuilding import rebuilt, replaying, write_checkpoint
from zo_lightning.cli.subcommands import take_subcommand, with_override
from zo_lightning.cli.terminal import quiet_libraries
from zo_lightning.config import register
from zo_lightning.errors import ConfigError

if TYPE_CHECKING:
    from zo_lightning.replay import Replay, Run

SUBCOMMANDS = {
    "verify": "hold a whole run against itself: journals of all ranks, checkpoints and snapshots against their replay",
    "at": "rebuild the parameters at `step`: digest and rate; `out=FILE.ckpt` writes them, also to fork from",
    "diff": "two runs: the first step in which they part, what differs, and how far apart they are",
    "skip": "rebuild without the terms of the steps in `without`, after a bad batch; `out=FILE.ckpt` to fork from",
    "export": "write any step as a PEFT adapter or a merged model into the folder `out`",
}
register()


def main() -> None:
    """Take subcommand and folders off the command line; the rest is Hydra's, after the run's own settings."""
    with reported():
        command, rest = take_subcommand("zo-replay SUBCOMMAND RUN [key=value ...]", SUBCOMMANDS)
        sys.argv[1:] = with_saved_overrides(with_override(named_folders(rest), f"command={command}"))
        _main()


def named_folders(arguments: Sequence[str]) -> list[str]:
    """The run and the other run, which a user names by their place, as overrides.

    Examples:
        >>> named_folders(["outputs/a", "step=3"]), named_folders(["a", "b"])
        (['ckpt_path=outputs/a', 'step=3'], ['ckpt_path=a', 'other=b'])
    """
    keys = iter(("ckpt_path", "other"))
    plain = [not argument.startswith("-") and "=" not in argument for argument in arguments]
    names = [next(keys, None) if is_plain else None for is_plain in plain]
    return [f"{name}={argument}" if name else argument for name, argument in zip(names, arguments, strict=True)]


@hydra.main(version_base="1.3", config_path="pkg://zo_lightning.conf", config_name="replay")
def _main(config: DictConfig) -> None:
    run(config)


def run(config: DictConfig) -> None:
    """Do what the subcommand says and print one line of JSON last."""
    with reported():
        folder = _folder(config.ckpt_path, "the folder of a run is missing: `zo-replay SUBCOMMAND RUN`")
        quiet_libraries()
        facts = _COMMANDS[config.command](config, folder)
        print(json.dumps({"command": config.command, "run": str(folder), **facts}))
        if not facts.get("good", True):
            raise SystemExit(FAILED)


def _folder(name: str | None, missing: str) -> Path:
    if name is None:
        raise ConfigError(missing)
    folder = Path(name).expanduser().absolute()
    if not folder.is_dir():
        raise ConfigError(f"{name} is not the folder of a run")
    return folder


def _verify(config: DictConfig, folder: Path) -> dict[str, Any]:
    from zo_lightning.replay import verify

    run = _recorded(config, folder)
    with replaying(config, run) as replay:
        lines = list(verify(run, replay))
    _print_table(
        f"verified {folder}",
        ("", "steps", "found"),
        [(line.what.removeprefix(f"{folder}/"), str(line.steps), line.found) for line in lines],
    )
    wrong = [line for line in lines if not line.good]
    print(f"{run.num_steps} steps replayed, {_rate(replay)}; " + (f"{len(wrong)} wrong" if wrong else "all is well"))
    return {
        "good": not wrong,
        "steps": run.num_steps,
        "checked": len(lines),
        "wrong": [line.what for line in wrong],
        "problems": list(run.recovered.problems),
        "steps_per_second": replay.rate,
    }


def _at(config: DictConfig, folder: Path) -> dict[str, Any]:
    return _rebuilt(config, folder, without=())


def _skip(config: DictConfig, folder: Path) -> dict[str, Any]:
    if not config.without:
        raise ConfigError("`without` is missing: name the steps to leave out, as in `without=[120,121]`")
    return _rebuilt(config, folder, without=config.without)


def _rebuilt(config: DictConfig, folder: Path, without: Collection[int]) -> dict[str, Any]:
    run = _recorded(config, folder)
    step = _step(config, run)
    replay = rebuilt(config, run, step, without=without)
    print(f"{folder} at step {step}: factors {replay.digest[:16]}; {_done(replay)}")
    if config.out is not None:
        write_checkpoint(config, run, replay, Path(config.out).expanduser().absolute())
        print(f"written to {config.out}: fork it with `zo-train ckpt_path={config.out}`")
    return {"step": step, "without": list(without), "digest": replay.digest, "out": config.out, **_speed(replay)}


def _diff(config: DictConfig, folder: Path) -> dict[str, Any]:
    from zo_lightning.replay import distance, parting

    other_folder = _folder(config.other, "the other run is missing: `zo-replay diff RUN OTHER`")
    overrides = with_saved_overrides([f"ckpt_path={other_folder}", "command=diff"])
    other_config = compose("replay", [o for o in overrides if not o.startswith("-")])
    one, two = _recorded(config, folder), _recorded(other_config, other_folder)
    found, end = parting(one, two), min(one.num_steps, two.num_steps)
    distances = {
        step: distance(rebuilt(config, one, step), rebuilt(other_config, two, step))
        for step in sorted({found.step + 1, end} if found else {end})
    }
    where = f"part in step {found.step}" if found else "agree in every step that both journals hold"
    rows = [*((what, "") for what in (found.what if found else ())), *_distance_rows(distances)]
    _print_table(f"{folder} and {other_folder} {where}", ("", ""), rows)
    return {
        "other": str(other_folder),
        "first_difference": found.step if found else None,
        "what": list(found.what) if found else [],
        "distance": distances,
    }


def _distance_rows(distances: dict[int, float]) -> list[tuple[str, str]]:
    return [(f"relative distance after {step} steps", f"{value:.3g}") for step, value in distances.items()]


def _export(config: DictConfig, folder: Path) -> dict[str, Any]:
    check_out(config)
    run = _recorded(config, folder)
    replay = rebuilt(config, run, _step(config, run))
    print(_done(replay))
    with TemporaryDirectory() as place:
        checkpoint = Path(place) / "step.ckpt"
        write_checkpoint(config, run, replay, checkpoint)
        about = export(config, checkpoint, f"{folder} at step {replay.snapshot['version']}")
    return {**about, **_speed(replay)}


_COMMANDS: dict[str, Callable[[DictConfig, Path], dict[str, Any]]] = {
    "verify": _verify,
    "at": _at,
    "diff": _diff,
    "skip": _skip,
    "export": _export,
}


def _recorded(config: DictConfig, folder: Path) -> Run:
    from zo_lightning.replay import read_run

    return read_run(folder, start=Path(config.start).expanduser() if config.start else None)


def _step(config: DictConfig, run: Run) -> int:
    step = run.num_steps if config.step is None else config.step
    if not 0 <= step <= run.num_steps:
        raise ConfigError(f"`step={step}` is not in the journal, which ends after {run.num_steps} steps")
    return int(step)


def _done(replay: Replay) -> str:
    start = f" from {replay.begun_from.name}" if replay.begun_from else ""
    return f"{replay.num_steps} steps replayed{start}, {_rate(replay)}"


def _rate(replay: Replay) -> str:
    return f"{replay.rate:,.0f} steps/s"


def _speed(replay: Replay) -> dict[str, Any]:
    return {"replayed": replay.num_steps, "steps_per_second": replay.rate}


def _print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    Console().print(Panel(table, title=title, expand=False))


if __name__ == "__main__":
    main()
