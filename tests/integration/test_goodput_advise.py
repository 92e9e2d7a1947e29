"""``zo-goodput advise`` with flags alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import pytest

from zo_lightning.cli import goodput

ZEROTH = (
    "step_seconds=.093 mtbf_hours=24 tax=1e-4 replay_seconds=.00014 snapshot_seconds=.1 detection_seconds=1 "
    "relaunch_seconds=19"
)
SMALL = (
    "step_seconds=7 mtbf_hours=50000 devices=16384 save_seconds=5 state_bytes=73e6 bandwidth=25e9 detection_seconds=30 "
    "relaunch_seconds=360"
)


def ask(words: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[str, dict]:
    monkeypatch.setattr(sys, "argv", ["zo-goodput", "advise", *words])
    monkeypatch.setenv("COLUMNS", "1000")
    goodput.main()
    said = capsys.readouterr().out
    return said, json.loads(said.splitlines()[-1])


def test_a_zeroth_order_run_can_be_described(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    said, answer = ask(ZEROTH.split(), monkeypatch, capsys)
    assert (answer["way"], answer["steps_lost"], answer["rework"]) == ("journal", 0.0, 0.0)
    assert answer["k"] == pytest.approx(36_000, abs=500) and "A snapshot pays every" in said


@pytest.mark.parametrize("drain", [[], ["drain_steps=30", "tax=.03"]])
def test_a_small_state_is_kept_by_plain_snapshots(drain, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    said, answer = ask([*SMALL.split(), *drain], monkeypatch, capsys)
    assert answer["way"] == "snapshot" and ("drain" in answer["others"]) == bool(drain)
    assert "Take plain snapshots every step (7 s): copying 73 MB takes 2.92 ms, which fits 3.00 % of a step" in said
