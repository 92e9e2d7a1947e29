"""Compiled loops of an installed wheel whose folder cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CODE = """
import logging
logging.basicConfig()
import torch, zo_lightning
from zo_lightning.core import rng
from zo_lightning.kernels.low_rank import Part, add_low_rank, table
output, ones = torch.zeros(1, 2), torch.ones(1, 4)
add_low_rank(output, ones, ones, torch.ones(1, 1, 2), table([Part(0, 0, 0, 2)]), table([(0, 0, 1)]))
print(zo_lightning.__file__, output.tolist(), len(rng.normals(1, 0, step=0, index=0, counts=(4,))))
"""


@pytest.fixture
def site(wheel: Path, tmp_path: Path) -> Path:
    """The wheel's files; where numba would keep machine code beside them there is no folder, whoever runs the test."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (tmp_path / "site" / "zo_lightning" / "kernels" / "__pycache__").touch()
    return tmp_path / "site"


@pytest.mark.parametrize("place", ["HOME", "NUMBA_CACHE_DIR", None])
def test_loops_are_kept_where_there_is_a_place_and_run_without_one(site: Path, tmp_path: Path, place: str | None):
    inherited = {key: value for key, value in os.environ.items() if key not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    given = {} if place is None else {place: str(tmp_path / "place")}
    environment = inherited | {"PYTHONPATH": str(site), "HOME": "/dev/null"} | given
    done = subprocess.run([sys.executable, "-P", "-c", CODE], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [str(site / "zo_lightning" / "__init__.py"), "[[4.0,", "4.0]]", "4"], done.stderr
    kept = {path.name.split("-")[0] for path in (tmp_path / "place").rglob("*.nbi")}
    assert kept == ({"philox._fill", "philox._words", "low_rank._loop", "low_rank._add_rows"} if place else set())
    assert ("NUMBA_CACHE_DIR" in done.stderr) is (place is None)
