"""The subcommands of ``zo-goodput``: each prints its table and returns rows and pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from zo_lightning.cli.goodput_tables import print_breakdown, print_changes, print_note, print_sweep, print_table
from zo_lightning.errors import ConfigError
from zo_lightning.goodput.changes import changes, what_if
from zo_lightning.goodput.model import TARGETS, Target
from zo_lightning.goodput.plots import draw_breakdown, draw_changes, draw_sweep
from zo_lightning.goodput.scenario import Scenario
from zo_lightning.goodput.simulator import MOST_FAILURES
from zo_lightning.goodput.tables import SCALES, Intervals, Row, cells, checked, row


@dataclass(frozen=True, slots=True)
class Answer:
    """What a subcommand found.

    Attributes:
        rows: for the line of JSON and the CSV.
        pictures: each draws into a folder and returns its files.
    """

    rows: list[dict[str, Any]]
    pictures: list[Callable[[Path], list[Path]]]


def table(config: DictConfig, base: Scenario) -> Answer:
    """Every target at every number of devices."""
    rows = _rows(config, _cells(config, base))
    print_table(rows, _title("Goodput", base))
    return _answer(rows, draw_breakdown)


def sweep(config: DictConfig, base: Scenario) -> Answer:
    """Every interval with every target."""
    jobs = [replace(base.job, devices=n) for n in config.devices or [base.job.devices]]
    targets = _targets(config, ("none", "blocking") if base.legacy_credit else TARGETS)
    ks = sorted(set(config.ks))
    plans = [checked(replace(base, job=job, target=target)) for job in jobs for target in targets]
    rows = _rows(config, [replace(plan, k=k) for plan in plans for k in ks])
    for job in jobs:
        title = _title(f"Goodput by interval, {job.devices:,} devices", base)
        print_sweep([found for found in rows if found.n == job.devices], title)
    drain = base.job.drain_steps
    if min(ks) < drain and set(targets) != {"blocking"} and not (base.legacy_credit or base.tiers):
        print_note(f"Drains take {drain} steps, one after the other: where k is less, it is {drain} for them.")
    return _answer(rows, draw_sweep)


def breakdown(config: DictConfig, base: Scenario) -> Answer:
    """The rows of the table, as stacked losses."""
    rows = _rows(config, _cells(config, base))
    print_breakdown(rows, _title("Where the time goes", base))
    return _answer(rows, draw_breakdown)


def what_ifs(config: DictConfig, base: Scenario) -> Answer:
    """Single changes, for each number of devices and target that is asked for."""
    devices, targets = config.devices or [base.job.devices], _targets(config, ("none",))
    answer = Answer([], [])
    for scenario in cells(base, devices=devices, targets=targets, intervals=_intervals(config)):
        with _progress(len(list(changes(scenario))), config) as advance:
            before, found = what_if(scenario, failures=_failures(config, scenario), seed=config.seed, on_row=advance)
        print_changes(before, found)
        named = [(None, 0.0, before), *((change.name, change.gain, change.row) for change in found)]
        answer.rows.extend({"change": name, "gain": gain, **asdict(of)} for name, gain, of in named)
        answer.pictures.append(partial(draw_changes, before, found))
    return answer


ANSWERS: dict[str, Callable[[DictConfig, Scenario], Answer]] = {
    "table": table,
    "sweep": sweep,
    "breakdown": breakdown,
    "what-if": what_ifs,
}


def _answer(rows: Sequence[Row], draw: Callable[[Sequence[Row], Path], list[Path]]) -> Answer:
    return Answer([asdict(found) for found in rows], [partial(draw, rows)])


def _title(what: str, base: Scenario) -> str:
    return f"{what}, in % of the wall clock" + ("; drains credited after k steps" if base.legacy_credit else "")


def _cells(config: DictConfig, base: Scenario) -> list[Scenario]:
    targets = _targets(config, TARGETS)
    return cells(base, devices=config.devices or SCALES, targets=targets, intervals=_intervals(config))


def _targets(config: DictConfig, default: Sequence[Target]) -> Sequence[Target]:
    return default if config.targets is None else [target.value for target in config.targets]


def _intervals(config: DictConfig) -> Intervals:
    return OmegaConf.to_container(config.k) if isinstance(config.k, DictConfig) else config.k  # type: ignore[return-value]


def _rows(config: DictConfig, scenarios: Sequence[Scenario]) -> list[Row]:
    rows = []
    with _progress(len(scenarios), config) as advance:
        for scenario in scenarios:
            rows.append(row(scenario, failures=_failures(config, scenario), seed=config.seed))
            advance()
    return rows


def _failures(config: DictConfig, scenario: Scenario) -> int:
    """To simulate: as many as are asked for, or are expected in so many days, and two at least, for an error."""
    if config.days is None or not config.failures:
        return int(config.failures)
    expected = config.days * 86_400 / (scenario.mtbf + scenario.job.restart_seconds)
    if expected > MOST_FAILURES:
        raise ConfigError(
            f"`days`={config.days:g}: {expected:.3g} failures are expected; {MOST_FAILURES:,} are simulated at most"
        )
    return max(2, round(expected))


@contextmanager
def _progress(total: int, config: DictConfig) -> Iterator[Callable[[], None]]:
    """A bar on a terminal while something is simulated; it leaves nothing behind."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (config.failures and console.is_terminal)) as progress:
        task = progress.add_task("simulated", total=total)
        yield lambda: progress.advance(task)
