"""The benchmark of the store runs with a small bank: bytes are counted, no time is asserted."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "checkpoint_store.py"


def test_every_slot_is_written_once(tmp_path, monkeypatch, capsys):
    rows = 1 << 16  # a column of 256 KiB stands alone
    arguments = ["--rows", str(rows), "--stages", "3", "--folder", str(tmp_path)]
    monkeypatch.setattr("sys.argv", [str(SCRIPT), *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    column = 4 * rows
    assert facts["bytes_reused"] == (2 + 4) * column and facts["bytes_whole"] == 12 * column
    assert 0 < facts["bytes_written"] - 6 * column < 6000  # manifests
    assert set(facts["milliseconds"]) == {"training waits", "save", "restore"}
    assert json.loads((tmp_path / "checkpoint_store.json").read_text()) == facts
