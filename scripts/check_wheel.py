"""Build the wheel as a release would, install it alone and without vLLM, and use it from another folder.

`make check-wheel` calls it, and so does CI: what is missing from a wheel shows nowhere else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import install

ROOT = install.ROOT
# They need all code and the configuration, but neither the repository nor vLLM.
TESTS = ("tests/conformance", "tests/unit/test_imports.py", "tests/unit/test_method.py", "tests/unit/test_tasks.py")
WITHOUT_VLLM = "import importlib.util, zo_lightning; assert importlib.util.find_spec('vllm') is None"


def main() -> None:
    """Build, install, run, test; the first failure ends it."""
    os.environ.pop("PYTHONPATH", None)  # so that only what is installed can be imported
    with tempfile.TemporaryDirectory(prefix="zo_lightning_") as name:
        folder = Path(name)
        python = clean_environment(folder / "venv")
        install.pip(*install.INSTALL, str(built_wheel(folder / "dist")), "pytest", "pytest-timeout")
        shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)  # pytest's settings
        run(folder, python, "-c", WITHOUT_VLLM)
        say("a run of its own, in another folder")
        train = python.with_name("zo-train")
        run(folder, train, "debug=fdr", "backend=dense", "model=tiny-llama", "hydra.run.dir=run")
        say(f"the tests {' '.join(TESTS)}")
        run(folder, python, "-m", "pytest", "--quiet", "--import-mode=importlib", "-m", "not slow", *TESTS)
    say("done")


def built_wheel(folder: Path) -> Path:
    """The wheel, by way of the source distribution: nothing that lies about in the tree gets into it."""
    say("building")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\ncheck-wheel: the wheel does not build; the reason is above")
    (wheel,) = folder.glob("*.whl")
    return wheel


def clean_environment(folder: Path) -> Path:
    """The interpreter of a new environment, into which pip installs from now on; it has PyTorch for CPU, if any."""
    venv.create(folder)
    python = folder / "bin" / "python"
    os.environ["PIP_PYTHON"] = str(python)
    if install.has_cpu_wheels():
        install.install_cpu_torch()
    return python


def run(folder: Path, *command: str | Path) -> None:
    """Run a command in a folder."""
    if subprocess.run([*map(str, command)], cwd=folder).returncode:
        sys.exit(f"check-wheel: {' '.join(map(str, command))} failed; the reason is above")


def say(text: str) -> None:
    """One line of progress."""
    print(f"check-wheel: {text}", flush=True)


if __name__ == "__main__":
    main()
