"""Rows, what single changes are worth, and pictures."""

from __future__ import annotations

import csv
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from zo_lightning.errors import ConfigError
from zo_lightning.goodput.changes import what_if
from zo_lightning.goodput.failures import Failures
from zo_lightning.goodput.model import TARGETS, Job
from zo_lightning.goodput.plots import draw_breakdown, draw_changes, draw_sweep
from zo_lightning.goodput.scenario import Scenario, Tier
from zo_lightning.goodput.tables import LOSSES, SCALES, cells, checked, has_closed_form, row, write_csv

BASE = Scenario(k=1, target="none")


def test_the_default_table_has_a_row_of_each_kind_for_each_scale() -> None:
    rows = [row(scenario) for scenario in cells(BASE)]
    assert [(found.n, found.target) for found in rows] == [(n, target) for n in SCALES for target in TARGETS]
    for found in rows:
        assert found.goodput + sum(getattr(found, loss) for loss in LOSSES) == pytest.approx(100)
        assert abs(found.law - found.k) <= (1.5 if found.target != "blocking" else 20)
    best = {found.n: found.k for found in rows if found.target == "none"}
    assert best == {512: 300, 2048: 149, 8192: 74, 16_384: 52, 65_536: 30}


def test_intervals_are_of_all_rows_or_of_targets_or_of_scales() -> None:
    scales, targets = (512, 2048), ("none", "blocking")

    def ks(intervals):
        return [cell.k for cell in cells(BASE, devices=scales, targets=targets, intervals=intervals)]

    assert ks(60) == [60, 60, 60, 60]
    assert ks({"none": 60}) == [60, 1716, 60, 848]
    assert ks({"none": [60, 70], "blocking": 80}) == [60, 80, 70, 80]
    with pytest.raises(ConfigError, match=r"`k.none` has 1 intervals for 2 `devices`"):
        ks({"none": [60]})


def test_an_interval_shorter_than_a_drain_is_refused_unless_it_is_credited_all_the_same() -> None:
    with pytest.raises(ConfigError, match=r"`k`=10: a drain takes 30 steps"):
        cells(BASE, intervals=10)
    assert cells(replace(BASE, legacy_credit=True), targets=["none"], intervals=10)[0].k == 10
    assert cells(BASE, targets=["blocking"], intervals=10)[0].k == 10


def test_a_drain_that_no_stretch_is_long_enough_for_is_refused() -> None:
    """The longest of all times between failures is 37 times their mean: 57,657 steps at 16,384 devices."""
    assert checked(replace(BASE, job=Job(drain_steps=57_000)))
    long = replace(BASE, job=Job(drain_steps=58_000))
    says = r"`goodput.drain_steps`=58000: .* 4.06e\+05 s, .* 16,384 devices .* 4.04e\+05 s .* `goodput.mtbf_hours`"
    with pytest.raises(ConfigError, match=says):
        cells(long, devices=[16_384], targets=["none"])
    assert cells(long, devices=[16_384], targets=["blocking"]) and cells(long, devices=[512], targets=["none"])
    assert checked(replace(long, survives_in_flight=True)) and checked(replace(long, legacy_credit=True))
    racks = replace(long, failures=Failures(rack_mtbf_hours=50_000))
    with pytest.raises(ConfigError, match=r"`goodput.mtbf_hours` or `goodput.rack_mtbf_hours`"):
        checked(racks)


def test_early_credit_stands_beside_what_drains_come_to() -> None:
    found = row(Scenario(k=10, target="none", legacy_credit=True))
    assert (round(found.goodput, 2), round(found.serial, 2)) == (92.84, 90.99)
    assert found.exact is None and row(Scenario(k=30, target="none")).serial is None


def test_what_has_no_closed_form_is_simulated() -> None:
    for scenario in (
        Scenario(k=60, failures=Failures(law="weibull", shape=0.7)),
        Scenario(k=60, spares=2),
        Scenario(k=60, tiers=(Tier(name="remote"),)),
    ):
        assert not has_closed_form(scenario)
        found = row(scenario, failures=200)
        assert found.goodput == found.simulated and found.exact is None and found.error > 0
        with pytest.raises(ConfigError, match="`failures`=0"):
            row(scenario)


def test_the_best_interval_counts_all_that_fails() -> None:
    racks = replace(BASE, failures=Failures(rack_devices=1, rack_mtbf_hours=50_000))
    assert cells(racks, devices=[512], targets=["none"])[0].k == cells(BASE, devices=[1024], targets=["none"])[0].k


def test_what_single_changes_are_worth() -> None:
    before, changes = what_if(Scenario(k=52, target="none"), failures=500)
    gains = {change.name: change.gain for change in changes}
    assert list(gains.values()) == sorted(gains.values(), reverse=True)
    assert gains["a restart in 40 s instead of 390"] == pytest.approx(94.461 - 91.553, abs=0.002)
    assert gains["drains brought to their newest version"] == pytest.approx(93.338 - 91.553, abs=0.002)
    assert gains["no spare at hand"] < -30
    assert {change.name: change.row.k for change in changes}["devices that fail half as often"] == 74
    assert before.goodput == pytest.approx(91.48, abs=0.01)


def test_changes_are_ranked_by_the_exact_form_where_failures_are_frequent() -> None:
    """At 400,000 devices the closed form has these two the other way round."""
    before, changes = what_if(Scenario(job=Job(devices=400_000), k=30, target="none"))
    gains = {change.name: change.gain for change in changes}
    quick, newest = (
        gains[name] for name in ("a restart in 40 s instead of 390", "drains brought to their newest version")
    )
    assert (quick, newest) == (pytest.approx(17.9, abs=0.05), pytest.approx(15.5, abs=0.05))
    assert all(change.gain == pytest.approx(change.row.exact - before.exact, abs=1e-6) for change in changes)


def test_what_is_already_so_is_no_change() -> None:
    def names(scenario: Scenario) -> str:
        return " ".join(change.name for change in what_if(scenario)[1])

    assert "the best interval" in names(Scenario(k=300, target="none"))
    assert "the best interval" not in names(Scenario(k=52, target="none"))
    assert "newest" not in names(Scenario(k=52, target="newest"))
    quick = Job(tax=0, drain_steps=1, detection_seconds=0, relaunch_seconds=30)
    assert not any(word in names(Scenario(job=quick, k=1)) for word in ("tax", "drains of", "noticed", "40 s"))
    assert "beside training" in names(Scenario(k=287, target="blocking"))
    spares = [change.name for change in what_if(Scenario(k=52, spares=2), failures=100)[1]]
    assert "4 spares instead of 2" in spares


def test_rows_are_written_with_full_precision(tmp_path: Path) -> None:
    rows = [asdict(row(scenario)) for scenario in cells(BASE, devices=[512])]
    write_csv(rows, tmp_path / "table.csv")
    with (tmp_path / "table.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [float(line["goodput"]) for line in read] == [line["goodput"] for line in rows]


@pytest.mark.parametrize("devices", [[16_384], [512, 16_384]])
def test_pictures_are_drawn(tmp_path: Path, devices: list[int]) -> None:
    rows = [row(scenario, failures=50) for scenario in cells(BASE, devices=devices)]
    early = replace(BASE, legacy_credit=True)
    swept = [row(cell) for k in (3, 30, 300) for cell in cells(early, devices=devices, targets=["none"], intervals=k)]
    for draw, of in ((draw_breakdown, rows), (draw_sweep, swept)):
        png, svg = draw(of, tmp_path)
        assert png.read_bytes().startswith(b"\x89PNG") and "</svg>" in svg.read_text()


def test_the_same_picture_is_the_same_file(tmp_path: Path) -> None:
    before, changes = what_if(Scenario(k=52, target="none"))
    first, again = (draw_changes(before, changes, tmp_path)[1].read_bytes() for _ in range(2))
    assert first == again
