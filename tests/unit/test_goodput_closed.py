"""Closed forms against published tables, against each other and against the simulator."""

from __future__ import annotations

import math
from dataclasses import astuple, fields, replace

import pytest

from zo_lightning.errors import ConfigError
from zo_lightning.goodput.closed import (
    best_interval,
    closed_form,
    exact_form,
    lost_steps,
)
from zo_lightning.goodput.laws import daly, drain_law, law, young
from zo_lightning.goodput.model import TARGETS, Job, Shares, Target
from zo_lightning.goodput.scenario import Scenario
from zo_lightning.goodput.simulator import simulate

SCALES = (512, 2048, 8192, 16_384, 65_536)
# The post's table: k and goodput of its asynchronous and of its blocking rows.
ASYNCHRONOUS = {512: (500, 99.17), 2048: (200, 98.07), 8192: (10, 94.70), 16_384: (10, 92.45), 65_536: (10, 81.69)}
BLOCKING = {512: (2000, 96.42), 2048: (1200, 92.82), 8192: (500, 85.55), 16_384: (300, 78.22), 65_536: (120, 57.32)}
K_SWEEP = {3: 93.13, 5: 92.93, 10: 92.42, 20: 91.41, 30: 90.40, 40: 90.75, 60: 90.77}
GRID = (*range(10, 121, 10), 200, 300, 500, 1200, 2000)  # the post's intervals are from here
ASYNC: tuple[Target, ...] = ("newest", "median", "oldest", "none")


def goodput(job: Job, k: float, target: Target, *, legacy_credit: bool = False) -> float:
    return 100 * closed_form(job, k, target, legacy_credit=legacy_credit).goodput


@pytest.mark.parametrize(("k", "printed"), K_SWEEP.items())
def test_the_posts_sweep_at_the_restarts_that_it_drew(k: int, printed: float) -> None:
    mtbf = Job().restart_seconds * (1 - 0.0376) / 0.0376
    job = Job(mtbf_hours=mtbf * Job().devices / 3600)
    assert closed_form(job, k, "none", legacy_credit=True).restart == pytest.approx(0.0376)
    assert goodput(job, k, "none", legacy_credit=True) == pytest.approx(printed, abs=0.05)


@pytest.mark.parametrize("n", SCALES)
def test_the_posts_table_at_its_nominal_failures(n: int) -> None:
    (k, printed), (blocking_k, blocking_printed) = ASYNCHRONOUS[n], BLOCKING[n]
    assert goodput(Job(devices=n), k, "none", legacy_credit=True) == pytest.approx(printed, abs=0.45)
    assert goodput(Job(devices=n), blocking_k, "blocking") == pytest.approx(blocking_printed, abs=0.7)


def test_the_posts_column_of_intervals_is_youngs_formula() -> None:
    jobs = [Job(devices=n) for n in SCALES]
    assert [round(young(job)) for job in jobs] == [1736, 868, 434, 307, 153]
    assert [round(law(job, "blocking")) for job in jobs] == [1736, 868, 434, 307, 153]


@pytest.mark.parametrize("n", SCALES)
def test_dalys_series_finds_the_best_blocking_interval(n: int) -> None:
    job = Job(devices=n)
    best = best_interval(job, "blocking")
    assert abs(daly(job) - best) < 1 < young(job) - best


@pytest.mark.parametrize("n", SCALES)
def test_the_best_simulated_blocking_interval_is_where_youngs_formula_says(n: int) -> None:
    scenarios = {k: Scenario(job=Job(devices=n), k=k, target="blocking") for k in GRID}
    found = {k: simulate(scenario, failures=4000, seed=1).shares.goodput for k, scenario in scenarios.items()}
    nearest = min(GRID, key=lambda k: abs(k - young(Job(devices=n))))
    assert abs(GRID.index(max(GRID, key=found.__getitem__)) - GRID.index(nearest)) <= 1


def test_drains_that_take_their_time() -> None:
    job = Job()
    assert round(job.mtbf, 1) == 10_986.3
    best = best_interval(job, "none")
    assert abs(best - 52) <= 3 and goodput(job, best, "none") == pytest.approx(91.48, abs=0.1)
    assert goodput(job, 30, "newest") == pytest.approx(92.84, abs=0.1)
    assert goodput(job, best_interval(job, "newest"), "newest") == pytest.approx(93.33, abs=0.1)
    large = Job(devices=65_536)
    assert best_interval(large, "none") == 30 and goodput(large, 30, "none") == pytest.approx(74.97, abs=0.2)


@pytest.mark.parametrize("k", [1, 3, 10, 29, 30])
def test_a_drain_that_is_asked_for_too_early_begins_when_the_last_is_done(k: int) -> None:
    assert closed_form(Job(), k, "none") == closed_form(Job(), 30, "none")
    assert exact_form(Job(), k, "none") == exact_form(Job(), 30, "none")
    early = closed_form(Job(), k, "none", legacy_credit=True).goodput
    assert early >= closed_form(Job(), 30, "none").goodput


def test_reconcile_earns_what_early_credit_only_claims() -> None:
    """A continuous drain of 30 steps, brought to its newest version, loses what one credited after 10 would."""
    assert lost_steps(Job(), 30, "newest") == lost_steps(Job(), 10, "none", legacy_credit=True) == 14.5
    assert goodput(Job(), 30, "newest") == pytest.approx(goodput(Job(), 10, "none", legacy_credit=True))


@pytest.mark.parametrize("target", ASYNC)
@pytest.mark.parametrize("n", SCALES)
def test_the_law_of_drains_is_the_best_interval_but_for_the_tax(n: int, target: Target) -> None:
    job = Job(devices=n)
    best = best_interval(job, target)
    assert drain_law(job) - job.tax * job.drain_steps - 1 <= best <= drain_law(job)
    around = [goodput(job, k, target) for k in range(30, 1000)]
    assert max(around) == goodput(job, best, target)


@pytest.mark.parametrize("target", ASYNC)
@pytest.mark.parametrize("n", SCALES)
def test_the_closed_form_is_as_close_to_the_exact_one_as_it_says(n: int, target: Target) -> None:
    job = Job(devices=n)
    k = best_interval(job, target)
    short = 100 * exact_form(job, k, target).goodput - goodput(job, k, target)
    limit = {16_384: 0.071, 65_536: 0.56}.get(n, 0.03)
    assert 0 <= short < (limit if target != "newest" else limit / 5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [2048, 16_384, 65_536])
def test_the_simulator_agrees_with_the_exact_form(n: int, target: Target) -> None:
    """Enough failures that half a point is far outside of three standard errors."""
    job = Job(devices=n)
    k = best_interval(job, target)
    estimate = simulate(Scenario(job=job, k=k, target=target), failures=40_000, seed=3)
    assert 100 * estimate.errors.goodput < 0.12
    agree(exact_form(job, k, target), estimate.shares, estimate.errors)


@pytest.mark.parametrize("k", [3, 10, 30, 60, 300])
def test_the_simulator_agrees_with_the_closed_form_of_early_credit(k: int) -> None:
    estimate = simulate(Scenario(k=k, target="none", legacy_credit=True), failures=40_000, seed=3)
    agree(closed_form(Job(), k, "none", legacy_credit=True), estimate.shares, estimate.errors)


def agree(expected: Shares, found: Shares, errors: Shares) -> None:
    for field in fields(Shares):
        difference = getattr(found, field.name) - getattr(expected, field.name)
        assert abs(difference) <= 3 * getattr(errors, field.name) + 1e-5, field.name


@pytest.mark.parametrize("form", [closed_form, exact_form])
@pytest.mark.parametrize("target", TARGETS)
def test_shares_are_shares(form, target: Target) -> None:
    for job in (Job(), Job(devices=1_000_000), Job(tax=0, save_seconds=0), Job(tax=5), Job(drain_steps=1)):
        for k in (1, 30, 52, 10_000):
            shares = astuple(form(job, k, target))
            assert math.fsum(shares) == 1
            assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize("form", [closed_form, exact_form])
@pytest.mark.parametrize("target", TARGETS)
def test_limits(form, target: Target) -> None:
    never = form(Job(mtbf_hours=math.inf), 60, target)
    cost = 210 / 420 if target == "blocking" else 0.03 / 2
    assert never.goodput == pytest.approx(1 / (1 + cost))
    assert never.rework + never.restart == pytest.approx(0, abs=1e-15)
    assert form(Job(relaunch_seconds=math.inf), 60, target).restart == 1
    free = Job(tax=0, save_seconds=0, detection_seconds=0, relaunch_seconds=0, drain_steps=1, step_seconds=1e-3)
    assert form(free, 1, target).goodput == pytest.approx(1, abs=1e-5)


def test_better_is_better() -> None:
    for target in TARGETS:
        for change in ({"mtbf_hours": 60_000}, {"relaunch_seconds": 300}, {"tax": 0.02, "save_seconds": 200}):
            assert exact_form(replace(Job(), **change), 60, target).goodput > exact_form(Job(), 60, target).goodput


@pytest.mark.parametrize("k", [0, 0.5, -3, math.nan, math.inf])
def test_an_interval_that_is_none_is_refused(k: float) -> None:
    for form in (closed_form, exact_form, lost_steps):
        with pytest.raises(ConfigError, match=r"`k`=.*: a number of steps, 1 or more"):
            form(Job(), k, "none")


def test_what_has_no_answer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`goodput.mtbf_hours`=inf"):
        best_interval(Job(mtbf_hours=math.inf), "none")


def test_where_saves_take_longer_than_failures_need_to_come() -> None:
    job = Job(save_seconds=30_000)
    assert daly(job) == job.mtbf / job.step_seconds
