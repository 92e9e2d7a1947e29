"""What must hold for every job: sums, order, limits, and the same bits everywhere."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden import goodput
from tests.wheels import ROOT
from zo_lightning.goodput import portable
from zo_lightning.goodput.failures import Failures
from zo_lightning.goodput.model import TARGETS, Job
from zo_lightning.goodput.scenario import Scenario, Tier
from zo_lightning.goodput.simulator import simulate

few = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**64 - 1)
probabilities = st.floats(0, 1)
jobs = st.builds(
    Job,
    devices=st.integers(1, 1_000_000),
    step_seconds=st.floats(0.01, 100),
    drain_steps=st.integers(1, 300),
    tax=st.floats(0, 2),
    save_seconds=st.floats(0, 5_000),
    detection_seconds=st.floats(0, 1_000),
    relaunch_seconds=st.floats(0, 5_000),
    mtbf_hours=st.floats(10, 1e6),
)
hours = st.one_of(st.just(math.inf), st.floats(1_000, 1e6))
laws = st.one_of(
    st.builds(Failures, rack_mtbf_hours=hours, switch_mtbf_hours=hours),
    st.builds(
        Failures, law=st.sampled_from(("weibull", "lognormal")), shape=st.floats(0.3, 2),
        rack_mtbf_hours=hours, switch_mtbf_hours=hours,
    ),
)  # fmt: skip
tiers = st.builds(
    Tier,
    name=st.just("tier"),
    every=st.one_of(st.none(), st.integers(1, 2_000)),
    drain_steps=st.one_of(st.none(), st.integers(1, 100)),
    load_seconds=st.floats(0, 500),
    survives_device=probabilities,
    survives_rack=probabilities,
    survives_switch=probabilities,
)
plain = st.builds(
    Scenario, job=jobs, k=st.integers(1, 3_000), target=st.sampled_from(TARGETS), failures=laws,
    straggler_share=st.floats(0, 0.9), straggler_slowdown=st.floats(1, 10), survives_in_flight=st.booleans(),
)  # fmt: skip
legacy = st.builds(
    Scenario, job=jobs, k=st.integers(1, 3_000), target=st.sampled_from(TARGETS), legacy_credit=st.just(True)
)
scenarios = st.one_of(
    plain,
    legacy,
    st.builds(
        replace, plain, tiers=st.lists(tiers, max_size=3).map(tuple),
        spares=st.one_of(st.none(), st.integers(0, 1_000)), repair_seconds=st.floats(0, 1e6),
    ),
)  # fmt: skip


@few
@given(scenarios, seeds)
def test_the_shares_add_up_to_1_exactly_and_none_is_less_than_0(scenario: Scenario, seed: int) -> None:
    found = simulate(scenario, failures=50, seed=seed)
    losses = astuple(found.shares)[1:]
    assert math.fsum(astuple(found.shares)) == 1
    assert abs(sum(losses) - (1 - found.shares.goodput)) <= 4 * math.ulp(1.0)
    assert all(0 <= share <= 1 for share in astuple(found.shares))
    assert all(0 <= error < math.inf for error in astuple(found.errors))
    assert found.seconds > 0


@few
@given(scenarios, seeds)
def test_one_seed_has_one_answer(scenario: Scenario, seed: int) -> None:
    assert simulate(scenario, failures=20, seed=seed) == simulate(scenario, failures=20, seed=seed)
    other = simulate(scenario, failures=20, seed=seed ^ 1)
    assert other.seconds != simulate(scenario, failures=20, seed=seed).seconds


@few
@given(plain, seeds, st.integers(2, 50))
def test_longer_between_failures_is_no_worse(scenario: Scenario, seed: int, times: int) -> None:
    """By a whole factor: with the same failures, scaled, what a stretch keeps grows at least as it does."""
    longer = replace(scenario.job, mtbf_hours=scenario.job.mtbf_hours * times)
    law = replace(scenario.failures, rack_mtbf_hours=math.inf, switch_mtbf_hours=math.inf)
    worse, better = (
        simulate(replace(scenario, job=job, failures=law, survives_in_flight=False), failures=50, seed=seed)
        for job in (scenario.job, longer)
    )
    assert better.shares.goodput >= worse.shares.goodput - 1e-12
    assert better.shares.restart <= worse.shares.restart + 1e-15


@few
@given(plain, seeds, st.floats(1.01, 100), st.floats(0, 1_000))
def test_a_longer_restart_is_worse(scenario: Scenario, seed: int, times: float, more: float) -> None:
    job = scenario.job
    slower = replace(job, relaunch_seconds=job.relaunch_seconds * times, detection_seconds=job.detection_seconds + more)
    better, worse = (simulate(replace(scenario, job=each), failures=50, seed=seed) for each in (job, slower))
    assert worse.shares.goodput <= better.shares.goodput + 1e-15
    assert worse.shares.restart >= better.shares.restart - 1e-15
    assert worse.steps_lost == better.steps_lost


@few
@given(plain, seeds, st.floats(1.01, 10))
def test_a_higher_tax_is_worse(scenario: Scenario, seed: int, times: float) -> None:
    """Without the drain in flight, whose survival favours whoever is in the middle of one."""
    job, scenario = scenario.job, replace(scenario, survives_in_flight=False)
    taxed = replace(job, tax=job.tax * times, save_seconds=job.save_seconds * times)
    better, worse = (simulate(replace(scenario, job=each), failures=50, seed=seed) for each in (job, taxed))
    assert worse.shares.goodput <= better.shares.goodput + 1e-12
    assert worse.shares.restart == pytest.approx(better.shares.restart, abs=1e-15)


@few
@given(plain, seeds)
def test_a_newer_target_and_a_drain_that_survives_are_no_worse(scenario: Scenario, seed: int) -> None:
    shares = {
        target: simulate(
            replace(scenario, target=target, survives_in_flight=False), failures=50, seed=seed
        ).shares.goodput
        for target in ("newest", "median", "oldest", "none")
    }
    assert shares["newest"] >= shares["median"] >= shares["oldest"] >= shares["none"]
    surviving = simulate(replace(scenario, target="none", survives_in_flight=True), failures=50, seed=seed)
    assert surviving.shares.goodput >= shares["none"]


@few
@given(jobs, seeds, st.integers(0, 20))
def test_more_spares_are_no_worse(job: Job, seed: int, spares: int) -> None:
    idle = [
        simulate(Scenario(job=job, k=100, spares=each), failures=50, seed=seed).shares.idle
        for each in (spares, spares + 1, None)
    ]
    assert idle[0] >= idle[1] >= idle[2] == 0


@few
@given(plain)
def test_without_failures_only_saves_and_stragglers_cost(scenario: Scenario) -> None:
    never = replace(scenario, job=replace(scenario.job, mtbf_hours=math.inf), failures=Failures())
    found = simulate(never)
    assert found.failures == found.shares.rework == found.shares.restart == 0
    rare = simulate(replace(never, job=replace(never.job, devices=1, mtbf_hours=1e8)), failures=20)
    assert rare.shares.goodput == pytest.approx(found.shares.goodput, abs=1e-4)
    assert rare.shares.tax == pytest.approx(found.shares.tax, abs=1e-4)
    assert rare.shares.stall == pytest.approx(found.shares.stall, abs=1e-4)


@few
@given(jobs, seeds)
def test_without_costs_only_the_interrupted_step_is_lost(job: Job, seed: int) -> None:
    free = replace(job, tax=0, drain_steps=1, detection_seconds=0, relaunch_seconds=0)
    found = simulate(Scenario(job=free, k=1), failures=50, seed=seed)
    assert found.steps_lost == found.shares.restart == found.shares.stall == found.shares.idle == 0
    assert found.shares.tax <= 1e-12
    assert found.shares.rework <= 50 * free.step_seconds / found.seconds


def test_a_restart_without_end_leaves_nothing() -> None:
    found = simulate(Scenario(job=Job(relaunch_seconds=math.inf), k=30)).shares
    assert astuple(found) == (0, 0, 1, 0, 0, 0)
    long = simulate(Scenario(job=Job(relaunch_seconds=1e15), k=30)).shares
    assert long.goodput < 1e-9 and long.restart == pytest.approx(1)


@pytest.mark.parametrize(("law", "shape"), [("exponential", 1), ("weibull", 0.5), ("weibull", 3), ("lognormal", 0.8)])
def test_the_mean_is_the_mtbf_whatever_the_shape(law: str, shape: float) -> None:
    scenario = Scenario(k=30, failures=Failures(law=law, shape=shape))  # type: ignore[arg-type]
    found = simulate(scenario, failures=200_000)
    trained = found.seconds / found.failures - scenario.job.restart_seconds
    spread = {"exponential": 1, "weibull": {0.5: 5**0.5, 3: 0.3634}.get(shape, 1), "lognormal": 0.947}[law]
    assert trained == pytest.approx(scenario.mtbf, rel=4 * spread / 200_000**0.5)


def ulps(found: np.ndarray, expected: list[float]) -> float:
    return max(abs(f - e) / math.ulp(e) for f, e in zip(found.tolist(), expected, strict=True))


@few
@given(st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=20))
def test_logarithms_are_those_of_the_mathematics_library(numbers: list[float]) -> None:
    found, expected = portable.log(np.array(numbers)), [math.log(number) for number in numbers]
    np.testing.assert_allclose(found, expected, rtol=1e-15, atol=1e-300)


@few
@given(st.lists(st.floats(-700, 700), min_size=1, max_size=20))
def test_exponentials_are_those_of_the_mathematics_library(numbers: list[float]) -> None:
    assert ulps(portable.exp(np.array(numbers)), [math.exp(number) for number in numbers]) <= 2


@few
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20), st.floats(-5, 5))
def test_powers_are_those_of_the_mathematics_library(numbers: list[float], exponent: float) -> None:
    found, expected = portable.power(np.array(numbers), exponent), [number**exponent for number in numbers]
    np.testing.assert_allclose(found, expected, rtol=3e-14)


@few
@given(st.lists(st.floats(2**-52, 1 - 2**-52), min_size=1, max_size=20))
def test_normal_quantiles_are_where_the_distribution_says(probabilities: list[float]) -> None:
    for p, z in zip(probabilities, portable.normal_quantile(np.array(probabilities)).tolist(), strict=True):
        tail, below = min(p, 1 - p), math.erfc(abs(z) / math.sqrt(2)) / 2
        assert below == pytest.approx(tail, rel=1e-13)
        assert (z < 0) == (p < 0.5) or abs(z) < 1e-15


def test_gamma_is_that_of_the_mathematics_library() -> None:
    for x in np.linspace(1, 12, 300):
        assert portable.gamma(float(x)) == pytest.approx(math.gamma(x), rel=1e-14)


def test_streams_are_uniform_and_independent() -> None:
    one, other, seed = (portable.uniforms(*each, 100_000) for each in ((0, 0), (0, 1), (1, 0)))
    assert one.min() > 0 and one.max() < 1
    assert one.mean() == pytest.approx(0.5, abs=4 / math.sqrt(12 * 100_000))
    for another in (other, seed):
        assert abs(np.corrcoef(one, another)[0, 1]) < 4 / math.sqrt(100_000)
    np.testing.assert_array_equal(one[:10], portable.uniforms(0, 0, 10))


def run(*arguments: str, **environment: str) -> str:
    command = [sys.executable, "-W", "ignore", *arguments]
    path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    around = os.environ | {"PYTHONPATH": path} | environment
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=around).stdout


def test_a_processor_without_vector_units_has_the_same_bits() -> None:
    """In a process of its own, whose NumPy uses no instructions beyond those that it is compiled for."""
    features = run("-c", "import numpy.core._multiarray_umath as m; print(*m.__cpu_dispatch__)")
    bare = run("-m", "tests.golden.goodput", "print", NPY_DISABLE_CPU_FEATURES=features.strip())
    assert bare == goodput.text()


def test_every_estimate_has_its_golden_bits() -> None:
    assert goodput.FILE.read_text() == goodput.text()
