"""The site builds, without a warning: every page is in the navigation, every link and reference has its target."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.documented import ROOT


def test_the_site_builds_without_a_warning(tmp_path: Path):
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    program = Path(sys.executable).with_name("zensical")
    done = subprocess.run([program, "build", "--strict"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "reference" / "types" / "index.html").read_text()
    assert "DirectionKey" in page and "&gt;&gt;&gt;" in page
