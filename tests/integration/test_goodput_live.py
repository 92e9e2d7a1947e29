"""The account of a run that is killed and goes on, against a witness's clock and the supervisor's."""

from __future__ import annotations

import csv
import json
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.command import start
from tests.witness import Seen, seen
from zo_lightning.errors import ConfigError
from zo_lightning.goodput.advice import advise
from zo_lightning.goodput.lives import failures_of, read_lives, shares_of, training_seconds
from zo_lightning.goodput.measured import measured
from zo_lightning.goodput.model import Shares

QUIET = ["trainer.val_check_interval=null", "task.num_train=40", "task.num_dev=4", "task.num_test=4"]
ZEROTH = [
    *QUIET,
    "model=tiny-llama",
    "backend=dense",
    "direction.refresh_every=20",
    "trainer.max_steps=60",
    "failure.kill.step=38",
]
FIRST = [
    *QUIET,
    "experiment=adamw_drill",
    "data.batch_size=2",
    "checkpoint.drain.num_shards=4",
    "trainer.max_steps=80",
    "failure.kill.step=60",
]


class Story(NamedTuple):
    """A run of two lives, and what was seen of it from outside."""

    folder: Path
    lives: tuple[list[Seen], list[Seen]]
    killed: float  # when the first life's end was noticed
    started: float  # the second life's process


def killed_and_resumed(root: Path, settings: list[str]) -> Story:
    folder = root / "run"
    words = ["failure=kill", *settings, f"hydra.run.dir={folder}"]
    first = start(str(root / "first"), *words, cwd=root, module="tests.witness")
    printed, _ = first.communicate(timeout=280)
    assert first.returncode == -signal.SIGKILL, printed
    killed = time.time()
    time.sleep(1.0)  # nobody is there
    started = time.time()
    second = start(str(root / "second"), f"ckpt_path={folder}", cwd=root, module="tests.witness")
    printed, _ = second.communicate(timeout=280)
    assert second.returncode == 0, printed
    return Story(folder, (seen(root / "first"), seen(root / "second")), killed, started)


def by_hand(story: Story, until: int) -> tuple[Shares, int, int]:
    """Shares at the end of a step of the second life, steps made again, and steps of the journal."""
    first, second = story.lives
    second = [line for line in second if line.step <= until]
    newest = first[-1].step
    gap, idle = second[0].at - first[-1].at, story.started - first[-1].at
    again, replay, redone, replayed = 0.0, 0.0, 0, 0
    for before, line in pairwise(second):
        if line.replayed:
            replay, replayed = replay + line.at - before.at, replayed + 1
        elif line.step <= newest:
            again, redone = again + line.at - before.at, redone + 1
    wall = second[-1].at - first[0].at
    losses = {"rework": again / wall, "restart": (gap - idle + replay) / wall, "idle": idle / wall}
    return Shares(goodput=1 - sum(losses.values()), tax=0.0, **losses), redone, replayed


def check_shares(found: Shares, hand: Shares) -> None:
    """The witness knows neither tax nor stall, which are parts of its goodput and its rework."""
    assert found.restart == pytest.approx(hand.restart, abs=0.02)
    assert found.idle == pytest.approx(hand.idle, abs=0.02)
    inside = found.goodput + found.tax + found.stall
    assert inside + found.rework == pytest.approx(hand.goodput + hand.rework, abs=0.02)
    assert found.goodput <= hand.goodput + 0.02 and found.rework <= hand.rework + 0.02
    total = found.goodput + found.rework + found.restart + found.tax + found.stall + found.idle
    assert total == pytest.approx(1.0, abs=1e-6)


def logged(story: Story) -> dict[int, Shares]:
    """Of the second life, by step."""
    with (story.folder / "csv" / "version_1" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["goodput/goodput"]]
    assert all(float(row["goodput/mtbf_seconds"]) > 0 for row in rows)
    names = Shares.__slots__
    return {int(row["step"]) + 1: Shares(**{name: float(row[f"goodput/{name}"]) for name in names}) for row in rows}


@pytest.fixture(scope="module")
def zeroth(tmp_path_factory) -> Story:
    return killed_and_resumed(tmp_path_factory.mktemp("zeroth"), ZEROTH)


@pytest.fixture(scope="module")
def first_order(tmp_path_factory) -> Story:
    return killed_and_resumed(tmp_path_factory.mktemp("first"), FIRST)


@pytest.mark.parametrize("kind", ["zeroth", "first_order"])
def test_a_killed_run_accounts_for_every_second(kind, request):
    story: Story = request.getfixturevalue(kind)
    stretches = read_lives(story.folder)
    first, second = stretches
    end = story.lives[1][-1].step
    hand, redone, replayed = by_hand(story, end)
    assert (first.step, first.end, second.step, second.end) == (story.lives[0][-1].step, "", end, "finished")
    assert (second.redone, second.replayed.count) == (redone, max(replayed - 1, 0))  # the first is not timed
    assert (redone, replayed) == ((0, 18) if kind == "zeroth" else (redone, 0))
    assert failures_of(stretches) == 1
    check_shares(shares_of(stretches), hand)
    for step, shares in logged(story).items():
        check_shares(shares, by_hand(story, step)[0])


def test_a_zeroth_order_run_is_advised_by_its_journal(zeroth):
    found = measured(zeroth.folder)
    assert (found.way, found.failures) == ("journal", 1) and found.shares is not None
    assert found.steps == 60 - 2 and found.shares.rework == 0
    assert found.mtbf.value == pytest.approx(training_seconds(read_lives(zeroth.folder)))
    advice = advise(found)
    assert advice.plan.steps_lost == 0 and "The journal holds every step" in "\n".join(advice.sentences)
    command = start("advise", f"run_dir={zeroth.folder}", cwd=zeroth.folder, module="zo_lightning.cli.goodput")
    printed, _ = command.communicate(timeout=100)
    assert command.returncode == 0 and advice.facts().items() <= json.loads(printed.splitlines()[-1]).items(), printed


def test_a_first_order_run_is_advised_by_its_drain(first_order):
    found = measured(first_order.folder)
    assert (found.way, found.failures) == ("drain", 1)
    assert found.drain_steps >= 4 and found.state_bytes > 12 * 400_000 and found.save > 0 and found.tax.value > 0
    advice = advise(found, target="newest")
    assert advice.plan.way == "drain" and {"snapshot", "blocking"} == {other.way for other in advice.others}
    with pytest.raises(ConfigError, match="`k`=1: a checkpoint takes"):
        advise(found, k=1, target="none")


@pytest.mark.slow
def test_ends_of_every_kind_count_once_and_as_the_supervisor_has_them(tmp_path):
    folder = tmp_path / "run"
    failures = {"kill": 15, "hang": 25, "engine_death": 35, "sigterm": 45}
    words = [
        *(setting for setting in ZEROTH if not setting.startswith("failure")),
        "supervise=true",
        "supervise.hang_floor=2",
        f"failure=[{','.join(failures)}]",
        *(f"failure.{name}.step={step}" for name, step in failures.items()),
    ]
    run = start(*words, f"hydra.run.dir={folder}", cwd=tmp_path)
    printed, _ = run.communicate(timeout=280)
    assert run.returncode == 0, printed
    incidents = [json.loads(line) for line in (folder / "incidents.jsonl").read_text().splitlines()]
    stretches = read_lives(folder)
    ends = [stretch.end for stretch in stretches]
    assert ends == ["", "", "EngineDiedError", "SIGTERMException", "finished"]
    assert [stretch.step for stretch in stretches] == [15, 25, 35, 46, 60]  # SIGTERM lets the step end
    assert failures_of(stretches) == len(incidents) == 4
    restarts = [stretch.restart - stretch.replayed.total for stretch in stretches[1:]]
    heard = [incident["detection"] + incident["relaunch"] for incident in incidents]
    assert restarts == pytest.approx(heard, abs=1.0)
    assert sum(stretch.redone for stretch in stretches) == 0 and all(stretch.idle == 0 for stretch in stretches)
