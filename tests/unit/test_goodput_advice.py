"""Advice: its figures are those of the closed forms, and it says what it does not know."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import pytest

from zo_lightning.errors import ConfigError
from zo_lightning.goodput.advice import advise
from zo_lightning.goodput.closed import best_interval, exact_form, lost_steps
from zo_lightning.goodput.intervals import Interval, exactly, mean_time_between
from zo_lightning.goodput.journal import journal_form, snapshot_interval
from zo_lightning.goodput.laws import drain_law
from zo_lightning.goodput.measured import Measured
from zo_lightning.goodput.model import Job, Shares

CLUSTER = Measured().given(
    step_seconds=7.0,
    mtbf_hours=50_000.0,
    devices=16_384,
    drain_steps=30,
    tax=0.03,
    save_seconds=210.0,
    detection_seconds=30.0,
    relaunch_seconds=360.0,
)
RUN = replace(  # as a folder tells it
    CLUSTER,
    source="runs/one",
    way="drain",
    steps=4000,
    step=Interval(7.0, 6.9, 7.1),
    failures=3,
    training=30_000.0,
    mtbf=mean_time_between(3, 30_000.0),
    state_bytes=70_000_000_000,
    bandwidth=25e9,
)
JOURNAL = Measured(
    source="runs/zo",
    way="journal",
    steps=1000,
    step=Interval(0.093, 0.092, 0.094),
    tax=exactly(0.0001),
    detection=exactly(1.0),
    relaunch=exactly(19.0),
    failures=2,
    training=172_800.0,
    mtbf=mean_time_between(2, 172_800.0),
    replay=0.00014,
    snapshot=0.1,
)


def said(found: Measured, **asked) -> str:
    return "\n".join(advise(found, **asked).sentences)


def test_a_cluster_gets_the_corrected_optimum():
    advice = advise(CLUSTER)
    job, plan = Job(), advice.plan
    assert (plan.way, plan.target, plan.k) == ("drain", "newest", best_interval(job, "newest"))
    assert abs(plan.k - drain_law(job)) < 2
    assert plan.shares == exact_form(job, plan.k, "newest") and round(100 * plan.shares.goodput, 2) == 93.34
    assert plan.steps_lost == pytest.approx(lost_steps(job, plan.k, "newest") + 0.5, rel=0.01)
    assert plan.goodput.low == plan.goodput.value == plan.goodput.high  # nothing was measured
    (blocking,) = advice.others
    assert blocking.shares == exact_form(job, best_interval(job, "blocking"), "blocking")


@pytest.mark.parametrize("target", ["newest", "median", "oldest", "none", "blocking"])
def test_what_is_asked_about_is_answered(target):
    advice = advise(CLUSTER, k=60, target=target)
    assert advice.plan.shares == exact_form(Job(), 60, target)
    assert advice.facts()["goodput"] == round(100 * exact_form(Job(), 60, target).goodput, 4)
    assert f"{100 * advice.plan.shares.goodput:.2f} % goodput" in "\n".join(advice.sentences)


def test_a_drain_cannot_begin_before_the_last_one_is_done():
    with pytest.raises(ConfigError, match="`k`=10: a checkpoint takes 30 steps"):
        advise(CLUSTER, k=10, target="none")
    with pytest.raises(ConfigError, match="`k`=10"):  # a plain snapshot could, and is not what was asked about
        advise(replace(RUN, state_bytes=1_000_000_000, save=1.0), k=10, target="none")
    advice = advise(CLUSTER, k=10, target="newest")
    assert advice.plan.k == 30 and "`k`=10 is 30" in "\n".join(advice.sentences)
    assert round(100 * advice.plan.shares.goodput, 2) == 92.84


def test_figures_of_a_run_have_intervals():
    plan = advise(RUN, target="newest").plan
    assert RUN.mtbf is not None
    job = replace(plan.job, step_seconds=7.1, mtbf_hours=RUN.mtbf.low / 3600)
    assert plan.goodput.low == exact_form(job, plan.k, "newest").goodput
    assert plan.goodput.low < plan.goodput.value < plan.goodput.high
    text = said(RUN, target="newest")
    assert "A step takes 7 s (6.9 s to 7.1 s), from 4,000 steps." in text
    assert "A failure comes every 2.78 h (57 min to 13.5 h), from 3 in 8.33 h of training." in text


def test_a_plain_snapshot_where_it_fits_the_slack():
    small = replace(RUN, state_bytes=1_000_000_000)
    assert advise(small).plan.way == "snapshot"
    assert "copying 1 GB takes 40 ms, which fits 3.00 % of a step" in said(small)
    assert advise(RUN).plan.way == "drain" and "plain snapshots every" in said(RUN)


def test_time_until_a_drain_is_durable_is_rework():
    late = advise(replace(RUN, late=10), target="newest").plan
    soon = advise(RUN, target="newest").plan
    durable = math.exp(-10 * 7.0 / late.job.mtbf)  # of the lives that came to a drain's end
    assert late.shares.goodput == pytest.approx(durable * soon.shares.goodput)
    assert late.shares.rework - soon.shares.rework == pytest.approx(soon.shares.goodput - late.shares.goodput)
    assert 9 < late.steps_lost - soon.steps_lost < 10


def test_a_time_to_recover_shortens_the_interval_or_is_refused():
    assert advise(CLUSTER, rto_seconds=750.0).plan.seconds_lost <= 750.0
    assert advise(CLUSTER, rto_seconds=650.0).plan.k < 52
    with pytest.raises(ConfigError, match="`rto_seconds`=500: a restart takes 390 s"):
        advise(CLUSTER, rto_seconds=500.0, target="newest")


def test_a_journal_loses_no_step():
    advice = advise(JOURNAL)
    job, cost = advice.plan.job, {"replay_seconds": 0.00014, "snapshot_seconds": 0.1}
    assert (advice.plan.way, advice.plan.steps_lost, advice.plan.target) == ("journal", 0.0, None)
    assert advice.plan.k == int(snapshot_interval(job, **cost)) and abs(advice.plan.k - 36_000) < 500
    assert advice.plan.shares == journal_form(job, advice.plan.k, **cost)
    assert "loses at most the one in flight" in said(JOURNAL) and "lose no step" in said(JOURNAL)


def test_replay_fits_into_the_time_to_recover():
    assert advise(JOURNAL, rto_seconds=21.0).plan.k == 6478  # 1 s of replay and a step beside the restart
    with pytest.raises(ConfigError, match="`rto_seconds`=20: a restart and a step take 20"):
        advise(JOURNAL, rto_seconds=20.0)
    with pytest.raises(ConfigError, match="`target`=newest: a run with a journal has no drain"):
        advise(JOURNAL, target="newest")


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (Measured(), "no run has measured the rest: give `step_seconds`, `mtbf_hours`, `detection_seconds`"),
        (Measured().given(state_bytes=1.0, bandwidth=1.0, step_seconds=1.0), "give `mtbf_hours`"),
        (replace(RUN, step=None, steps=3), "3 steps were timed, of 10 that make a mean: give `step_seconds`"),
        (replace(RUN, mtbf=None), "nothing says how often it fails: give `mtbf_hours`"),
        (replace(RUN, mtbf=mean_time_between(0, 3000.0)), "every 16.7 min: give `mtbf_hours`"),
        (
            replace(RUN, relaunch=None, detection=None),
            "no restart was seen: give `detection_seconds`, `relaunch_seconds`",
        ),
        (replace(RUN, tax=None, drain_steps=None), "no checkpoint was completed: give `tax`, `drain_steps`"),
        (replace(JOURNAL, replay=None), "taken from the journal: give `replay_seconds`"),
    ],
)
def test_what_is_not_known_is_asked_for(found, says):
    with pytest.raises(ConfigError) as refused:
        advise(found)
    assert says.lower() in str(refused.value).lower()


def test_flags_stand_before_what_was_measured():
    slower = RUN.given(step_seconds=8.0, mtbf_hours=1.0)
    assert advise(slower).facts()["step_seconds"] == 8.0
    assert advise(slower).facts()["mtbf_interval"] == [3600.0, 3600.0]
    assert "A step takes 8 s, as given." in said(slower)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("step_seconds", 0.0),
        ("mtbf_hours", -1.0),
        ("tax", math.nan),
        ("drain_steps", 0),
        ("relaunch_seconds", math.inf),
        ("devices", 4),
        ("replay_seconds", 0.0),
        ("step_seconds", 1e-308),
        ("snapshot_seconds", 1e308),
        ("bandwidth", 0.0),
        ("state_bytes", -1.0),
    ],
)
def test_flags_out_of_range_are_refused(flag, value):
    with pytest.raises(ConfigError, match=f"`{flag}`"):
        RUN.given(**{flag: value})


def test_a_drain_that_was_not_measured_is_not_made_up():
    with pytest.raises(ConfigError, match="`target`=newest: the run took plain snapshots"):
        advise(replace(RUN, way="snapshot"), target="newest")
    assert advise(replace(RUN, way="snapshot").given(drain_steps=30, tax=0.03), target="newest").plan.way == "drain"


def test_many_failures_are_counted_exactly():
    many = CLUSTER.given(mtbf_hours=50_000.0, devices=400_000)
    assert round(100 * advise(many, target="none").plan.shares.goodput, 2) == 25.05


@pytest.mark.parametrize("late", [0, 10])
@pytest.mark.parametrize("k", [30, 40, 60])
@pytest.mark.parametrize("target", ["newest", "median", "oldest", "none"])
def test_at_most_is_at_most(k, target, late):
    plan = advise(replace(CLUSTER, late=late), k=k, target=target).plan
    behind = {"newest": 0, "median": 15, "oldest": 29, "none": 30}[target] + late
    again = sum(7.0 * (1.03 if step % k >= k - 30 else 1.0) for step in range(k + behind))
    assert 390 + again <= plan.seconds_lost + 1e-9 < 390 + 7.0 * 1.03 * (k + behind + 1)


def test_a_restart_whose_parts_are_not_known_is_one_time():
    alone = replace(RUN, detection=None, relaunch=Interval(20.0, 15.0, 25.0), restarts=3)
    text = said(alone)
    assert "A restart takes 20 s (15 s to 25 s), from 3 restarts, from the last sign" in text and "noticed" not in text
    assert advise(alone).plan.job.restart_seconds == 20.0
    assert "noticed and 20 s (15 s to 25 s) more" in said(replace(alone, detection=exactly(1.0)))


@pytest.mark.parametrize(
    ("name", "said_of_it"), [("relaunch", "restarts"), ("tax", "the tax"), ("step", "the time of a step")]
)
def test_the_interval_covers_all_that_was_measured_several_times(name, said_of_it):
    value = getattr(CLUSTER, name).value
    found = replace(CLUSTER, **{name: Interval(value, 0.9 * value, 1.2 * value)})
    goodput = advise(found).plan.goodput
    assert goodput.low < goodput.value < goodput.high
    assert f"The interval is that of {said_of_it}; all else counts as certain" in said(found)
    assert "The interval is" not in said(CLUSTER)


def test_a_slow_down_that_could_not_be_told_is_named():
    untold = replace(RUN, tells_slowdown=False)
    assert "could not be told yet, and counts as nothing" in said(untold)
    assert "could not be told" not in said(untold.given(tax=0.03))


def test_a_step_that_is_cut_short_is_restart_where_nothing_is_made_again():
    shares = advise(JOURNAL).plan.shares
    assert shares.rework == 0.0 and sum(astuple(shares)) == pytest.approx(1.0)
    assert "whose time counts as restart" in said(JOURNAL)


def test_snapshots_of_every_step_are_called_that():
    assert "A snapshot pays every step (93 ms)" in said(replace(JOURNAL, snapshot=1e-15))
    assert "Take a snapshot every 50 steps" in said(JOURNAL, k=50)
    assert "every step (7 s)" in said(CLUSTER, k=1, target="blocking")


def test_idle_time_is_said_to_be_left_out():
    idle = replace(RUN, shares=Shares(goodput=0.8, rework=0.1, restart=0.0, tax=0.0, idle=0.1), redone=7)
    text = said(idle)
    assert "7 steps were made again" in text and "without the 10.00 % in which nobody had started the run again" in text


def test_flags_alone_describe_a_journal_or_plain_snapshots():
    flags = {"step_seconds": 0.093, "mtbf_hours": 24.0, "detection_seconds": 1.0, "relaunch_seconds": 19.0}
    journal = Measured().given(**flags, tax=1e-4, replay_seconds=0.00014, snapshot_seconds=0.1)
    assert advise(journal).plan.shares == advise(JOURNAL.given(mtbf_hours=24.0)).plan.shares
    plain = Measured().given(**flags, save_seconds=1.0, state_bytes=73e6, bandwidth=25e9)
    best = advise(plain, rto_seconds=3600.0)
    assert (best.plan.way, [other.way for other in best.others]) == ("snapshot", ["blocking"])
    assert advise(CLUSTER.given(state_bytes=73e6, bandwidth=25e9)).plan.way == "snapshot"
