"""The benchmark for a GPU runs on a CPU with a tiny shape: no time is asserted, only that all of it runs."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_step.py"


def test_a_tiny_shape_ends_with_a_line_of_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.argv", [str(SCRIPT), "--shape", "tiny", "--steps", "3", "--folder", str(tmp_path)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    *table, last = capsys.readouterr().out.splitlines()
    facts = json.loads(last)
    assert facts["steps"] == 3
    assert set(facts["milliseconds"]) == {"step", "matched", "dense"}
    for name in ("step_over_matched", "dense_over_step"):
        low, high = facts[f"{name}_interval"]
        assert math.isfinite(facts[name]) and 0 < low <= high
    first_words = [line.strip("│ ").partition(" ")[0] for line in table if line.startswith("│")]
    assert first_words[1:] == ["step", "matched", "dense"]
    assert json.loads((tmp_path / "tiny.json").read_text()) == facts
