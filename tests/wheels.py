"""Wheels, built as a release would be."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLE_PLUGIN = ROOT / "examples" / "plugin"


def build_wheel(sources: list[Path], folder: Path) -> Path:
    """A wheel of a project, built from a copy: a build folder in the tree would lend it stale files."""
    for source in sources:
        if source.is_dir():
            leave = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, folder / source.name, ignore=leave, dirs_exist_ok=True)
        else:
            shutil.copy(source, folder)
    wheels = folder / "dist"  # which setuptools does not take for a package
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(wheels), str(folder))
    (built,) = wheels.glob("*.whl")
    return built


def pip(command: str, *arguments: str) -> None:
    """Run pip without looking for dependencies."""
    subprocess.run([sys.executable, "-m", "pip", command, "--quiet", "--no-deps", *arguments], check=True)
