"""Where a run's time goes: every second once, whatever ends its lives."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import DummyLogger

from zo_lightning.callbacks.goodput import Goodput
from zo_lightning.drain.keeper import DrainKeeper
from zo_lightning.drain.options import DrainOptions
from zo_lightning.errors import ConfigError
from zo_lightning.goodput.account import Account
from zo_lightning.goodput.intervals import exactly, mean_of, mean_time_between
from zo_lightning.goodput.kept import Kept
from zo_lightning.goodput.lives import (
    FINISHED,
    INTERRUPTED,
    LIVES,
    failures_of,
    read_lives,
    shares_of,
    training_seconds,
)
from zo_lightning.goodput.measured import measured
from zo_lightning.goodput.model import Shares
from zo_lightning.goodput.times import Times

DRAIN = Kept(
    way="drain",
    drain_steps=4,
    state_bytes=1_000_000_000,
    bandwidth=1e9,
    snapshots=10,
    saves=10,
    save_seconds=50.0,
)


def begin(folder: Path, *, step: int, now: float, born: float | None = None) -> Account:
    return Account(folder, step=step, now=now, born=born)


def train(
    account: Account,
    steps: range,
    now: float,
    *,
    seconds: float = 2.0,
    replayed: bool = False,
    kept: Kept | None = None,
) -> float:
    """Steps of equal length; returns when the last one ended."""
    for step in steps:
        now += seconds
        account.step(step + 1, now, replayed=replayed, aside=0.0, kept=kept)
    return now


def shares(folder: Path) -> Shares:
    found = shares_of(read_lives(folder))
    assert found is not None
    return found


def test_a_killed_first_order_run_makes_steps_again(tmp_path):
    train(begin(tmp_path, step=0, now=100.0), range(10), 100.0)  # and is killed
    second = begin(tmp_path, step=6, now=150.0)
    now = train(second, range(6, 20), 150.0)
    second.close(now, end=FINISHED, lost=False, kept=None)
    # 20 s, 30 s until training goes on, 4 steps again, 10 new ones
    wall = 20 + 30 + 8 + 20
    assert asdict(shares(tmp_path)) == pytest.approx(
        {"goodput": 40 / wall, "rework": 8 / wall, "restart": 30 / wall, "tax": 0, "stall": 0, "idle": 0}
    )
    lives = read_lives(tmp_path)
    assert (failures_of(lives), training_seconds(lives), sum(life.redone for life in lives)) == (1, 48.0, 4)


def test_replay_is_restart_and_no_rework(tmp_path):
    train(begin(tmp_path, step=0, now=0.0), range(10), 0.0)
    second = begin(tmp_path, step=6, now=50.0)
    now = train(second, range(6, 10), 50.0, seconds=0.5, replayed=True)
    train(second, range(10, 12), now)
    wall = 20 + 30 + 2 + 4
    found = shares(tmp_path)
    assert (found.goodput, found.rework, found.restart) == pytest.approx((24 / wall, 0.0, 32 / wall))
    assert read_lives(tmp_path)[-1].replayed.mean == 0.5


def test_the_first_replayed_step_of_a_process_is_no_measure_of_replay(tmp_path):
    train(begin(tmp_path, step=0, now=0.0), range(10), 0.0)
    second = begin(tmp_path, step=6, now=50.0)
    now = train(second, range(6, 7), 50.0, seconds=3.0, replayed=True)
    train(second, range(7, 10), now, seconds=0.5, replayed=True)
    replayed = read_lives(tmp_path)[-1].replayed
    assert (replayed.count, replayed.mean) == (3, 0.5)
    assert shares(tmp_path).restart == pytest.approx(34.5 / 54.5)


@pytest.mark.parametrize(
    ("end", "failures", "restart"), [(FINISHED, 0, 0), (INTERRUPTED, 0, 0), ("SIGTERMException", 1, 30), ("", 1, 30)]
)
def test_a_stop_that_was_wanted_is_no_failure(tmp_path, end, failures, restart):
    first = begin(tmp_path, step=0, now=0.0)
    now = train(first, range(10), 0.0)
    if end:
        first.close(now, end=end, lost=True, kept=None)
    train(begin(tmp_path, step=10, now=50.0), range(10, 15), 50.0)
    lives = read_lives(tmp_path)
    assert failures_of(lives) == failures
    assert sum(life.restart for life in lives) == restart
    assert sum(life.wall for life in lives) == 30 + restart


def test_an_error_loses_the_step_it_cuts_short(tmp_path):
    first = begin(tmp_path, step=0, now=0.0)
    now = train(first, range(10), 0.0)
    first.close(now + 1.5, end="EngineDiedError", lost=True, kept=None)
    assert failures_of(read_lives(tmp_path)) == 1  # it has said so
    assert shares(tmp_path).rework == pytest.approx(1.5 / 21.5)


def test_a_run_that_nobody_starts_again_is_idle(tmp_path):
    train(begin(tmp_path, step=0, now=0.0), range(10), 0.0)
    begin(tmp_path, step=10, now=50.0, born=44.0)
    assert shares(tmp_path) == Shares(goodput=20 / 50, rework=0.0, restart=6 / 50, tax=0.0, idle=24 / 50)


def test_keeping_is_tax_and_waiting_is_stall(tmp_path):
    account, now = begin(tmp_path, step=0, now=0.0), 0.0
    for step in range(10):
        now += 2.5
        kept = replace(DRAIN, tax=0.25 * (step + 1), stall=0.125 * (step + 1), busy=step % 2 == 0)
        account.step(step + 1, now, replayed=False, aside=0.125, kept=kept)
    found = shares(tmp_path)
    assert (found.goodput, found.tax, found.stall) == (0.85, 0.1, 0.05)
    (life,) = read_lives(tmp_path)
    assert (life.free.count, life.busy.count) == (5, 4)  # the first step warms up
    assert life.free.mean == life.busy.mean == 2.0


def test_shares_add_up_and_are_the_same_live_and_from_the_file(tmp_path):
    for life in range(3):
        account = begin(tmp_path, step=7 * life, now=1000.0 * life + 0.1)
        train(account, range(7 * life, 7 * life + 11), 1000.0 * life + 0.1, seconds=1 / 3, kept=DRAIN)
    found = shares(tmp_path)
    assert sum(asdict(found).values()) == pytest.approx(1.0, abs=1e-12)
    figures = account.figures()
    assert figures.pop("mtbf_seconds") == pytest.approx(training_seconds(read_lives(tmp_path)) / 2)
    assert figures == pytest.approx(asdict(found))


def test_a_long_life_has_a_line_a_minute_and_a_torn_one_is_passed_over(tmp_path):
    train(begin(tmp_path, step=0, now=0.0), range(100), 0.0)
    file = tmp_path / LIVES
    lines = file.read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [30, 60, 90, 100]
    assert [stretch.wall for stretch in read_lives(tmp_path)] == [60.0, 60.0, 60.0, 20.0]
    file.write_text("\n".join([*lines[:3], lines[3][:40]]))
    train(begin(tmp_path, step=90, now=250.0), range(90, 95), 250.0)
    assert [stretch.step for stretch in read_lives(tmp_path)] == [30, 60, 90, 95]
    assert shares(tmp_path).restart == 70 / 260


def test_a_run_says_what_it_has_measured(tmp_path):
    account, now = begin(tmp_path, step=0, now=0.0), 0.0
    for step in range(41):
        now += 2.2
        account.step(step + 1, now, replayed=False, aside=0.0, kept=replace(DRAIN, tax=0.2 * (step + 1)))
    (tmp_path / "incidents.jsonl").write_text(
        "".join(json.dumps({"detection": d, "relaunch": r}) + "\n" for d, r in ((1.0, 20.0), (3.0, 40.0), (2.0, None)))
    )
    train(begin(tmp_path, step=38, now=200.0), range(38, 41), 200.0)
    found = measured(tmp_path)
    assert found.step is not None and found.mtbf is not None
    assert (found.way, found.steps, found.step.value) == ("drain", 40, pytest.approx(2.0))
    assert found.detection is not None and found.relaunch is not None and found.tax is not None
    assert (found.detection.value, found.relaunch.value, found.restarts, found.failures) == (2.0, 30.0, 2, 1)
    assert found.relaunch.high > 40.0 and found.relaunch.low == 0.0  # two say little
    # 8.2 s of tax and 10 windows of 4 steps, whose snapshots take 3 steps (5 s) to write
    assert (found.drain_steps, found.late, found.save) == (4, 3, 6.0)
    assert found.tax.value == pytest.approx(8.2 / (10 * 4 * 2.0))
    assert found.mtbf.low == pytest.approx(mean_time_between(1, 41 * 2.2 + 3 * 2.0).low)


def test_a_folder_without_an_account_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"`run_dir=.*callbacks=default"):
        measured(tmp_path)


@pytest.mark.parametrize("failures", [1, 2, 5, 40])
def test_bounds_of_the_mean_time_between_failures_are_the_chi_square_ones(failures):
    stats = pytest.importorskip("scipy.stats")
    found = mean_time_between(failures, 1000.0)
    assert found.low == pytest.approx(2000 / stats.chi2.ppf(0.975, 2 * failures + 2))
    assert found.high == pytest.approx(2000 / stats.chi2.ppf(0.025, 2 * failures))
    assert mean_time_between(0, 1000.0).low == pytest.approx(2000 / stats.chi2.ppf(0.95, 2))


GARBAGE = {
    "another version's": b'{"life":1,"at":5.0,"step":3,"wall":5.0,"extra":1}',
    "no number": b'{"life":"one","at":5.0,"step":3}',
    "a list": b"[1, 2]",
    "no text": b"\xff\xfe{}",
    "torn": b'{"life":1,"at":5.0,"st',
}


def spoil(folder: Path) -> None:
    with (folder / LIVES).open("ab") as file:
        for line in GARBAGE.values():
            file.write(line + b"\n")


@pytest.mark.parametrize("line", GARBAGE.values(), ids=GARBAGE.keys())
def test_what_is_no_line_of_this_version_is_passed_over(tmp_path, line):
    train(begin(tmp_path, step=0, now=0.0), range(10), 0.0, kept=DRAIN)
    known = read_lives(tmp_path)
    whole = (tmp_path / LIVES).read_bytes()
    odd = whole.replace(b'"way":"drain"', b'"way":"other"')
    (tmp_path / LIVES).write_bytes(line + b"\n" + odd + whole + line)
    assert read_lives(tmp_path) == known
    train(begin(tmp_path, step=8, now=30.0), range(8, 12), 30.0)
    assert [stretch.step for stretch in read_lives(tmp_path)] == [10, 12]


def fit(folder: Path, steps: int, *callbacks: Callback, logger: Any = False) -> Trainer:
    trainer = Trainer(
        callbacks=[Goodput(folder), *callbacks],
        max_steps=steps,
        accelerator="cpu",
        limit_val_batches=1,
        logger=logger,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(BoringModel())
    return trainer


@pytest.mark.parametrize("broken", ["", "step", "live", "figures", "close"])
def test_a_run_goes_on_whatever_lies_in_its_account(tmp_path, monkeypatch, caplog, broken):
    fit(tmp_path, 3)
    spoil(tmp_path)
    if broken:
        monkeypatch.setattr(Account, broken, lambda *_, **__: 1 / 0)
    assert fit(tmp_path, 64 if broken == "live" else 5).global_step >= 5
    assert ("goodput is not measured from here on" in caplog.text) == bool(broken)
    assert [stretch.life for stretch in read_lives(tmp_path)] == [1, 2]


class Watch(Callback):
    """Reads the account in the middle of a validation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.signs: list[float] = []

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        self.last = read_lives(self.folder)[-1].at

    def on_validation_batch_end(self, trainer: Any, *args: Any) -> None:
        if not trainer.sanity_checking:
            self.signs.append(read_lives(self.folder)[-1].at - self.last)


def test_a_run_shows_that_it_lives_while_it_validates(tmp_path):
    watch = Watch(tmp_path)
    fit(tmp_path, 64, watch)  # an epoch
    assert len(watch.signs) == 1 and watch.signs[0] > 0


class Ledger(DummyLogger):
    """A logger of another kind than those of Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []

    def log_metrics(self, *args: Any, metrics: dict[str, float] | None = None, **kwargs: Any) -> None:
        self.rows.append(metrics or args[0])


def test_any_logger_gets_the_figures(tmp_path):
    ledger, csv = Ledger(), CSVLogger(tmp_path, name="csv")
    fit(tmp_path, 5, logger=[ledger, csv])
    csv.save()
    rows = [row for row in ledger.rows if "goodput/goodput" in row]
    assert len(rows) >= 2
    for row in rows:
        assert {f"goodput/{name}" for name in asdict(shares(tmp_path))} == row.keys()
        assert sum(row.values()) == pytest.approx(1.0)
    assert "goodput/goodput" in (Path(csv.log_dir) / "metrics.csv").read_text()


def test_a_sign_of_life_in_validation_is_training(tmp_path):
    first = begin(tmp_path, step=0, now=0.0)
    now = train(first, range(10), 0.0)
    first.live(now + 50.0)
    first.live(now + 90.0)  # and is killed
    assert (read_lives(tmp_path)[-1].at, shares(tmp_path).goodput) == (110.0, 1.0)
    second = begin(tmp_path, step=10, now=120.0, born=112.0)
    second.step(11, 122.0, replayed=False, aside=0.0, kept=None)
    second.live(130.0)
    second.step(12, 134.0, replayed=False, aside=9.0, kept=None)
    wall = 134.0
    assert asdict(shares(tmp_path)) == pytest.approx(
        {"goodput": 124 / wall, "rework": 0, "restart": 8 / wall, "tax": 0, "stall": 0, "idle": 2 / wall}
    )
    assert read_lives(tmp_path)[-1].free.total == 3.0  # 12 s since the last step, 9 s of them validation


def test_a_life_that_has_no_snapshot_yet_says_nothing_of_their_cost(tmp_path):
    now = train(begin(tmp_path, step=0, now=0.0), range(40), 0.0, kept=DRAIN)
    known = measured(tmp_path)
    early = Kept(way="snapshot")
    train(begin(tmp_path, step=38, now=now + 10), range(38, 60), now + 10, kept=early)
    found = measured(tmp_path)
    assert (found.way, found.drain_steps, found.save, found.state_bytes) == ("drain", 4, 6.0, 1_000_000_000)
    assert (found.way, found.save) == (known.way, known.save)


def test_a_drain_has_no_cost_before_it_has_a_plan(tmp_path):
    assert DrainKeeper(DrainOptions(folder=tmp_path)).kept() is None


def test_waiting_for_the_disk_is_no_tax_of_the_journal(tmp_path):
    account, now = begin(tmp_path, step=0, now=0.0), 0.0
    for step in range(40):  # 0.1 s for the journal; with every fourth step 0.5 s for a snapshot, and 2 s of waiting
        number = step // 4
        now += 2.1 + (2.5 if step % 4 == 0 and step else 0.0)
        kept = Kept(
            way="journal",
            tax=0.1 * (step + 1) + 0.5 * number,
            stall=2.0 * number,
            snapshots=number,
            snapshot_seconds=0.5 * number,
            saves=number,
        )
        account.step(step + 1, now, replayed=False, aside=0.0, kept=kept)
    found = measured(tmp_path)
    assert found.step is not None and found.step.value == pytest.approx(2.0)
    assert found.tax is not None and found.tax.value == pytest.approx(0.1 * 40 / (39 * 2.0))
    assert found.snapshot == pytest.approx(2.5)


def test_a_torn_line_of_the_supervisor_is_passed_over(tmp_path):
    train(begin(tmp_path, step=0, now=0.0), range(40), 0.0)
    (tmp_path / "incidents.jsonl").write_bytes(b'{"detection": 1.0, "relaunch": 20.0}\n\xff\n{"detection": 3.0, "rel')
    found = measured(tmp_path)
    assert (found.detection, found.relaunch, found.restarts) == (exactly(1.0), exactly(20.0), 1)


@pytest.mark.parametrize("degrees", [1, 2, 3, 5, 10, 100])
def test_bounds_of_a_mean_are_those_of_students_law(degrees):
    stats = pytest.importorskip("scipy.stats")
    times = Times.of([100.0 + number for number in range(degrees + 1)])
    half = stats.t.ppf(0.975, degrees) * times.deviation / (degrees + 1) ** 0.5
    assert mean_of(times).high - times.mean == pytest.approx(half, rel=0.01)


def test_taxes_and_restarts_of_several_lives_have_an_interval(tmp_path):
    now = 0.0
    for life, tax in enumerate((0.1, 0.2, 0.3)):
        account = begin(tmp_path, step=40 * life, now=now)
        for step in range(40):
            now += 2.0 + tax
            account.step(40 * life + step + 1, now, replayed=False, aside=0.0, kept=replace(DRAIN, tax=tax * step))
        now += 10.0 + life
    found = measured(tmp_path)
    assert found.tax is not None and found.relaunch is not None and not found.tells_slowdown
    assert found.tax.low < found.tax.value < found.tax.high
    assert (found.detection, found.restarts, found.relaunch.value) == (None, 2, 10.5)
    assert found.relaunch.low < 10.0 < 11.0 < found.relaunch.high


def test_steps_beside_a_snapshot_that_are_slower_are_tax(tmp_path):
    account, now = begin(tmp_path, step=0, now=0.0), 0.0
    for step in range(81):
        busy = step % 2 == 0
        now += (2.4 if busy else 2.0) + 0.02 * (step % 3)
        account.step(step + 1, now, replayed=False, aside=0.0, kept=replace(DRAIN, busy=busy))
    found = measured(tmp_path)
    assert found.tax is not None and found.tells_slowdown
    assert found.tax.value == pytest.approx(0.2, abs=0.01) and found.tax.low < found.tax.value < found.tax.high
