"""``zo-bench SUBCOMMAND``: measure on this machine; a table, a picture and one line of JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from zo_lightning.cli.errors import reported
from zo_lightning.cli.subcommands import take_subcommand, with_override
from zo_lightning.cli.terminal import quiet_libraries
from zo_lightning.config import instantiate, register
from zo_lightning.config.resolvers import config_dir
from zo_lightning.errors import ConfigError

if TYPE_CHECKING:
    from zo_lightning.bench.workbench import Workbench
    from zo_lightning.core.types import Example
    from zo_lightning.data import ExampleDataModule
    from zo_lightning.models import PreparedModel
    from zo_lightning.tasks.encoding import TaskData

# Each is a module of zo_lightning.bench with a function `run`.
SUBCOMMANDS = {
    "step": "a step beside matched inference, the dense path, the packed backend and the machine's own product",
    "chain": "from the dense path to ragged requests, one change at a time: seconds and bytes",
    "tries": "options of several tokens by tries, and by one row for each candidate: tokens and seconds",
    "traffic": "bytes of parameter state that a step moves, counted from the model's config alone",
    "padding": "how much of a padded batch is empty, task by task",
    "bank": "a step's time against the bank's columns and the number of points in a batch",
    "journal": "seconds in the journal's calls over those of the step, in each mode of durability",
    "startup": "from the command to the first step: imports, configuration, data, engine",
}
OTHERS = frozenset({"dense", "packed"})  # backends that some subcommands compare with
register()


def main() -> None:
    """Take the subcommand off the command line; the rest is Hydra's."""
    with reported():
        command, rest = take_subcommand("zo-bench SUBCOMMAND [group=option ...] [key=value ...] [flags]", SUBCOMMANDS)
        sys.argv[1:] = with_override(rest, f"command={command}")
        _main()


@hydra.main(version_base="1.3", config_path="pkg://zo_lightning.conf", config_name="bench")
def _main(config: DictConfig) -> None:
    own = [f"hydra.searchpath=[file://{folder}]"] if (folder := config_dir()) else []
    run(config, overrides=[*HydraConfig.get().overrides.task, *own])


def run(config: DictConfig, *, overrides: Sequence[str] = ()) -> None:
    """Measure and publish; fresh processes compose with the same overrides."""
    with reported():
        _check(config)
        quiet_libraries()
        report = import_module(f"zo_lightning.bench.{config.command}").run(workbench(config, overrides))
        report.publish(Path(config.paths.output_dir), config.command)


def _check(config: DictConfig) -> None:
    if config.rounds < 1 or config.warm_up < 0:
        raise ConfigError(f"`rounds`={config.rounds} must be at least 1 and `warm_up`={config.warm_up} at least 0")
    if unknown := set(config.without) - OTHERS:
        raise ConfigError(f"`without` has {', '.join(sorted(unknown))}: what can be left out is {sorted(OTHERS)}")
    if config.data_dir and not Path(config.data_dir).expanduser().is_dir():
        raise ConfigError(f"`data_dir`={config.data_dir} is not a folder")


def workbench(config: DictConfig, overrides: Sequence[str] = ()) -> Workbench:
    """What the configured run is made of; no model is touched."""
    from zo_lightning.bench.workbench import Workbench
    from zo_lightning.cli.session import build_method, prepared_model
    from zo_lightning.core.types import Score
    from zo_lightning.data import check_batch_sizes

    check_batch_sizes(**config.data)

    def make_backend(name: str, **changes: Any) -> Any:
        chosen = config.backend if name == "backend" else config.get(name)
        return instantiate(chosen, **changes)

    method, bank = build_method(config, make_backend("backend").capabilities)
    return Workbench(
        model_name=config.model.name,
        task_name=config.task.name,
        method=method,
        bank=bank,
        objective=Score(loss=config.objective.loss.value),
        seed=config.seed,
        batch_size=config.data.batch_size,
        rounds=config.rounds,
        warm_up=config.warm_up,
        make_backend=make_backend,
        make_model=lambda: prepared_model(config),
        find_config=lambda: config_folder(config),
        make_data=partial(_data, config),
        tasks={task.name: partial(_train, config, task) for task in _tasks_at_hand(config)},
        ranks=list(config.ranks),
        points=list(config.points),
        starts=config.starts,
        overrides=overrides,
        dtype=config.backend.get("dtype", "auto"),
        others=OTHERS - set(config.without),
    )


def _data(config: DictConfig, model: PreparedModel) -> ExampleDataModule:
    from zo_lightning.data import ExampleDataModule

    examples = _examples(config, config.task, model)
    return ExampleDataModule(
        train=examples.train, dev=examples.dev, test=examples.test, seed=config.seed, **config.data
    )


def _train(config: DictConfig, task: DictConfig, model: PreparedModel) -> tuple[Example, ...]:
    return tuple(_examples(config, task, model).train)


def _examples(config: DictConfig, task: DictConfig, model: PreparedModel) -> TaskData:
    from zo_lightning.cli.session import max_length
    from zo_lightning.models import load_tokenizer

    texts = instantiate(task).texts()
    encoded: TaskData = texts.encode(load_tokenizer(model.folder), max_length=max_length(config, model))
    return encoded


def _tasks_at_hand(config: DictConfig) -> list[DictConfig]:
    """The built-in task, those with files in ``data_dir``, and the configured one."""
    found = {"sentiment": config.tasks.sentiment}
    for name, task in config.tasks.items():
        if config.data_dir and any(Path(config.data_dir).expanduser().glob(f"{name}_train*.jsonl")):
            found[name] = OmegaConf.merge(task, {"data_dir": config.data_dir, "truncate": "left"})
    return list((found | {config.task.name: config.task}).values())


def config_folder(config: DictConfig) -> Path:
    """A folder with the model's ``config.json``: its own, one that comes with the benchmarks, or the hub's.

    Raises:
        DataError: if there is none.
    """
    import zo_lightning.bench
    from zo_lightning.cli.session import prepared_model
    from zo_lightning.models import hub

    path = config.model.path
    if path is None:
        return prepared_model(config).folder
    if Path(path).expanduser().is_dir():
        return Path(path).expanduser()
    shipped = Path(zo_lightning.bench.__file__).parent / "shapes" / config.model.name
    return shipped if shipped.is_dir() else hub.fetch_config(path, config.model.revision)


if __name__ == "__main__":
    main()
