"""The simulator against steps taken one by one, against the closed forms, and against its own standard errors."""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest

from tests.goodput_steps import follow, shares
from zo_lightning.errors import ConfigError
from zo_lightning.goodput.closed import best_interval, closed_form, exact_form
from zo_lightning.goodput.failures import Failures, draw_gaps, longest_gap, read_trace
from zo_lightning.goodput.model import TARGETS, Job, Target
from zo_lightning.goodput.pace import Pace
from zo_lightning.goodput.scenario import Scenario, Tier
from zo_lightning.goodput.simulator import simulate

DEVICES = (512, 2048, 8192, 16_384, 65_536)
ASYNCHRONOUS = ("newest", "median", "oldest", "none")
DALY = {512: 1736, 2048: 868, 8192: 434, 16_384: 307, 65_536: 153}
LARGE = Job(devices=65_536)
RACKS = Failures(rack_mtbf_hours=20_000, switch_mtbf_hours=50_000)
LOCAL = Tier(name="local", every=30, drain_steps=4, tax=0.01, load_seconds=5, survives_device=0.4, survives_rack=0.0)
PEER = Tier(name="peer", every=50, drain_steps=10, survives_device=0.9, survives_switch=0.1, load_seconds=20)
REMOTE = Tier(name="remote", every=700, drain_steps=200, tax=0.005, load_seconds=120)
UNSAFE = replace(REMOTE, survives_device=0.8, survives_rack=0.5)

MIXTURES = {
    "weibull": Scenario(job=LARGE, k=52, failures=Failures(law="weibull", shape=0.6)),
    "lognormal": Scenario(job=LARGE, k=52, failures=Failures(law="lognormal", shape=1.2)),
    "trace": Scenario(k=40, failures=Failures(law="trace", trace=(10.0, 0.0, 4000.0, 900.5, 210.0))),
    "racks": Scenario(job=LARGE, k=52, target="none", failures=RACKS),
    "tiers": Scenario(job=LARGE, k=30, failures=RACKS, tiers=(LOCAL, PEER, REMOTE)),
    "tiers, none": Scenario(job=LARGE, k=30, target="none", failures=RACKS, tiers=(LOCAL, PEER, UNSAFE)),
    "tiers, blocking": Scenario(job=LARGE, k=90, target="blocking", failures=RACKS, tiers=(LOCAL, PEER, UNSAFE)),
    "tiers that inherit": Scenario(job=LARGE, k=70, target="median", tiers=(Tier(name="a"), REMOTE)),
    "one unsafe tier": Scenario(k=60, target="oldest", tiers=(UNSAFE,)),
    "in flight": Scenario(job=LARGE, k=70, target="none", survives_in_flight=True),
    "in flight, tiers": Scenario(job=LARGE, k=70, survives_in_flight=True, tiers=(LOCAL, UNSAFE), failures=RACKS),
    "spares": Scenario(job=LARGE, k=52, spares=3, repair_seconds=9_000),
    "no spares": Scenario(k=52, spares=0, repair_seconds=20),
    "racks and spares": Scenario(job=LARGE, k=52, failures=RACKS, spares=70, repair_seconds=30_000),
    "stragglers": Scenario(job=LARGE, k=52, straggler_share=0.1, straggler_slowdown=1.7),
    "stragglers, blocking": Scenario(job=LARGE, k=90, target="blocking", straggler_share=0.1, straggler_slowdown=3),
    "all": Scenario(
        job=replace(LARGE, relaunch_seconds=40), k=20, target="none", survives_in_flight=True, failures=RACKS,
        tiers=(LOCAL, PEER, UNSAFE), spares=600, repair_seconds=80_000, straggler_share=0.02, straggler_slowdown=2,
    ),
}  # fmt: skip


def assert_same_life(scenario: Scenario, failures: int, seed: int = 3) -> None:
    life, found = follow(scenario, failures, seed), simulate(scenario, failures=failures, seed=seed)
    assert found.steps_lost == pytest.approx(sum(life.lost) / failures, rel=1e-14)
    assert found.seconds == pytest.approx(life.wall, rel=1e-12)
    np.testing.assert_allclose(astuple(found.shares), shares(life), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("k", [1, 10, 30, 52, 300])
@pytest.mark.parametrize("target", TARGETS)
def test_arithmetic_is_what_single_steps_come_to(target: Target, k: int, legacy: bool) -> None:
    assert_same_life(Scenario(k=k, target=target, legacy_credit=legacy), 40)
    assert_same_life(Scenario(job=LARGE, k=k, target=target, legacy_credit=legacy), 100)


@pytest.mark.parametrize("name", MIXTURES)
def test_so_it_is_in_every_mixture(name: str) -> None:
    assert_same_life(MIXTURES[name], 150)


def test_a_checkpoint_more_often_than_a_drain_takes_is_one_each_drain() -> None:
    assert simulate(Scenario(k=3)) == simulate(Scenario(k=30))
    assert simulate(Scenario(k=3)) != simulate(Scenario(k=31))


def standard_errors_apart(scenario: Scenario, expected: tuple[float, ...], failures: int = 60_000) -> list[float]:
    found = simulate(scenario, failures=failures, seed=1)
    assert found.errors.goodput < 0.005 / 3  # half a point would be seen
    return [
        abs(share - form) / error if error else abs(share - form) * 1e12
        for share, form, error in zip(astuple(found.shares), expected, astuple(found.errors), strict=True)
    ]


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("target", TARGETS)
def test_it_agrees_with_the_exact_form(devices: int, target: Target) -> None:
    job = Job(devices=devices)
    for k in (DALY[devices],) if target == "blocking" else (30, 52, 200):
        apart = standard_errors_apart(Scenario(job=job, k=k, target=target), astuple(exact_form(job, k, target)))
        assert max(apart) < 3, (k, apart)


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("target", TARGETS)
def test_credit_before_its_time_agrees_with_the_form_of_uniform_phases(devices: int, target: Target) -> None:
    job = Job(devices=devices)
    for k in (DALY[devices],) if target == "blocking" else (3, 10, 30):  # beyond D see below
        expected = astuple(closed_form(job, k, target, legacy_credit=True))
        apart = standard_errors_apart(Scenario(job=job, k=k, target=target, legacy_credit=True), expected)
        assert max(apart) < 3, (k, apart)


def test_slowed_steps_are_hit_more_often_than_the_form_of_uniform_phases_knows() -> None:
    """With k > D the steps of a drain, the last of the cycle, are 3 % longer: 0.2 steps more are lost."""
    found = simulate(Scenario(k=52, legacy_credit=True), failures=400_000)
    taxed = 30 / 52
    more = 0.03 * taxed * (1 - taxed) / (1 + 0.03 * taxed) * (36.5 - 10.5)
    assert found.steps_lost == pytest.approx(25.5 + more, abs=3 * 15 / math.sqrt(400_000))
    assert found.shares.goodput == pytest.approx(closed_form(Job(), 52, "newest", legacy_credit=True).goodput, abs=5e-4)


@pytest.mark.parametrize("devices", DEVICES)
def test_the_best_blocking_interval_is_a_grid_step_from_daly(devices: int) -> None:
    """A grid of tenths of Daly's interval; the curve is so flat that only common random numbers tell them apart."""
    daly = DALY[devices]
    grid = [round(daly * (1 + tenth / 10)) for tenth in range(-5, 6)]
    job = Job(devices=devices)
    goodput = {k: simulate(Scenario(job=job, k=k, target="blocking"), failures=40_000).shares.goodput for k in grid}
    best = max(grid, key=lambda k: goodput[k])
    assert abs(grid.index(best) - grid.index(daly)) <= 1


def test_serial_drains_have_their_optimum_inside() -> None:
    goodput = {k: simulate(Scenario(k=k, target="none"), failures=40_000).shares.goodput for k in (30, 52, 90, 200)}
    assert max(goodput, key=lambda k: goodput[k]) == 52
    assert abs(best_interval(Job(), "none") - 52) <= 3


@pytest.mark.parametrize(
    ("scenario", "low"),
    [
        (Scenario(k=52), 0.86),
        (MIXTURES["weibull"], 0.86),
        (Scenario(k=52, target="none", legacy_credit=True), 0.86),
        (MIXTURES["tiers"], 0.75),
        (MIXTURES["spares"], 0.75),
    ],
)
def test_standard_errors_are_the_spread_of_repetitions(scenario: Scenario, low: float) -> None:
    found = [simulate(scenario, failures=600, seed=seed) for seed in range(150)]
    for name in ("goodput", "rework", "restart", "idle"):
        spread = np.std([getattr(each.shares, name) for each in found])
        claimed = np.mean([getattr(each.errors, name) for each in found])
        assert spread == claimed == 0 or low < claimed / spread < 1 / low, name


def test_a_trace_gone_through_again_is_no_more_certain() -> None:
    trace = Failures(law="trace", trace=tuple(500.0 * (1 + i * i % 17) for i in range(50)))
    once, often = (simulate(Scenario(k=30, failures=trace), failures=n) for n in (50, 5_000))
    assert once.shares.goodput == pytest.approx(often.shares.goodput, rel=1e-12)
    assert once.errors.goodput == pytest.approx(often.errors.goodput, rel=0.02)


def test_gaps_and_times_of_failures_are_one_trace() -> None:
    gaps = Failures(law="trace", trace=(100.0, 50.0, 30.0))
    times = Failures(law="trace", trace=(100.0, 150.0, 180.0), trace_holds="times")
    assert simulate(Scenario(k=5, failures=gaps)) == simulate(Scenario(k=5, failures=times))


def test_a_trace_is_read_from_lines(tmp_path: Path) -> None:
    file = tmp_path / "trace.txt"
    file.write_text("# seconds\n10\n\n 2.5e3  # a switch\n")
    assert read_trace(file) == (10.0, 2500.0)
    file.write_text("10\nten\n")
    with pytest.raises(ConfigError, match=r"`goodput.trace`: line 2 .* ten"):
        read_trace(file)
    with pytest.raises(ConfigError, match=r"`goodput.trace`=.*no such file"):
        read_trace(file.with_name("missing"))


def test_racks_and_switches_add_to_the_rate_and_destroy_what_is_near() -> None:
    job = Job(devices=16_384)
    scenario = Scenario(job=job, k=30, failures=RACKS)
    rates = [16_384 / 50_000, 256 / 20_000, 32 / 50_000]
    assert scenario.mtbf == pytest.approx(3600 / sum(rates))
    near = Tier(name="near", survives_rack=0.0, drain_steps=10)
    far = Tier(name="far", every=1500)
    both = simulate(replace(scenario, tiers=(near, far)), failures=40_000)
    expected = rates[1] / sum(rates)  # of all failures, those that go back to the far tier
    alone = simulate(replace(scenario, tiers=(replace(near, survives_rack=1.0), far)), failures=40_000)
    further = (both.steps_lost - alone.steps_lost) / expected
    assert 500 < further < 1500  # a checkpoint of every 1,500 steps is half that old, or more after a short stretch


def test_nothing_survived_is_back_to_step_0() -> None:
    found = simulate(Scenario(k=30, tiers=(Tier(name="all", survives_device=0.0),)))
    assert found.shares.goodput == 0
    assert found.shares.rework > 0.9


@pytest.mark.parametrize("name", ["one tier", "tiers and spares"])
def test_cost_grows_with_failures_and_not_with_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: how often the simulator asks when so many steps are over, and for how many stretches at once."""
    spent, ended = [], Pace.ended

    def counted(self, steps, phases):
        spent.append(np.size(steps))
        return ended(self, steps, phases)

    def cost(steps: float, failures: int) -> int:
        spent.clear()
        job = Job(mtbf_hours=steps * Job().step_seconds * Job().devices / 3600)
        many = {"tiers": (LOCAL, UNSAFE), "spares": 3} if name != "one tier" else {}
        found = simulate(Scenario(job=job, k=300, **many), failures=failures)
        assert found.failures == failures and found.steps_lost > 0
        return sum(spent)

    monkeypatch.setattr(Pace, "ended", counted)
    assert cost(1e3, 200) == cost(1e12, 200)  # steps between two failures
    assert cost(1e3, 400) == 2 * cost(1e3, 200)


def test_a_million_devices_for_a_year_is_one_call() -> None:
    job = Job(devices=1_000_000, relaunch_seconds=10, step_seconds=1.0, drain_steps=5)
    year = 365 * 86_400
    scenario = Scenario(job=job, k=10, spares=5_000, repair_seconds=86_400)
    found = simulate(scenario, failures=round(year / (scenario.mtbf + job.restart_seconds)))
    assert found.failures > 100_000
    assert found.seconds == pytest.approx(year, rel=0.02)


BAD = {
    "goodput.shape": lambda: Failures(law="weibull", shape=math.nan),
    "goodput.law": lambda: Failures(law="poisson"),  # type: ignore[arg-type]
    "goodput.trace_holds": lambda: Failures(trace_holds="dates"),  # type: ignore[arg-type]
    "goodput.rack_devices": lambda: Failures(rack_devices=0),
    "goodput.trace": lambda: Failures(trace=(1.0, 2.0)),
    "goodput.rack_mtbf_hours": lambda: Failures(rack_mtbf_hours=0),
    "goodput.switch_mtbf_hours": lambda: Failures(switch_mtbf_hours=math.nan),
    "goodput.tiers.disk.survives_rack": lambda: Tier(name="disk", survives_rack=1.1),
    "goodput.tiers.disk.tax": lambda: Tier(name="disk", tax=math.nan),
    "goodput.tiers.disk.drain_steps": lambda: Tier(name="disk", drain_steps=0),
    "goodput.tiers.disk.load_seconds": lambda: Tier(name="disk", load_seconds=-1),
    "goodput.spares": lambda: Scenario(k=30, spares=-1),
    "goodput.repair_seconds": lambda: Scenario(k=30, repair_seconds=math.inf),
    "goodput.straggler_share": lambda: Scenario(k=30, straggler_share=1.5),
    "goodput.straggler_slowdown": lambda: Scenario(k=30, straggler_slowdown=0.5),
    "goodput.tax": lambda: Scenario(job=Job(tax=math.inf), k=30),
    "goodput.mtbf_hours": lambda: simulate(Scenario(job=Job(mtbf_hours=1e300), k=30)),
    "k": lambda: Scenario(k=0),
    "target": lambda: Scenario(k=30, target="latest"),  # type: ignore[arg-type]
    "legacy_credit": lambda: Scenario(k=30, legacy_credit=True, survives_in_flight=True),
    "failures": lambda: simulate(Scenario(k=30), failures=1),
    "seed": lambda: simulate(Scenario(k=30), seed=-1),
}


@pytest.mark.parametrize("key", BAD)
def test_bad_input_is_refused_with_its_key(key: str) -> None:
    with pytest.raises(ConfigError, match=f"`{key}[`=]"):
        BAD[key]()


@pytest.mark.parametrize(
    ("trace", "holds", "says"),
    [
        ((), "gaps", "empty"),
        ((1.0, -1.0), "gaps", "0 or more|from 0"),
        ((1.0, math.nan), "gaps", "from 0"),
        ((1.0, math.inf), "times", "from 0"),
        ((0.0, 0.0), "gaps", "above 0"),
        ((5.0, 4.0), "times", "not in order"),
        ((1e15, 1.0), "gaps", "more steps of .* than can be counted"),
    ],
)
def test_bad_traces_are_refused(trace: tuple[float, ...], holds: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"`goodput.trace`.*({says})"):
        simulate(
            Scenario(job=Job(step_seconds=1e-3), k=1, failures=Failures(law="trace", trace=trace, trace_holds=holds))
        )


@pytest.mark.parametrize("law", ["exponential", "trace"])
def test_a_shape_that_the_law_does_not_have_is_refused(law: str) -> None:
    with pytest.raises(ConfigError, match=f"`goodput.shape`=0.7: `goodput.law={law}` has none"):
        Failures(law=law, shape=0.7, trace=(1.0,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "law",
    [
        Failures(),
        Failures(law="weibull", shape=0.5),
        Failures(law="lognormal", shape=2.0),
        Failures(law="trace", trace=(1e3, 5.0)),
    ],
)
def test_no_gap_is_longer_than_the_longest(law: Failures) -> None:
    longest, drawn = longest_gap(law, 300.0), draw_gaps(law, 300.0, 100_000, seed=5).max()
    assert drawn <= longest < math.inf
    assert longest < 10_000 * drawn
