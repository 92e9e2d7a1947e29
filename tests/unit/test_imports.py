"""The direction of imports (docs/design.md), read from the source, and what a light import must not bring in."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import zo_lightning

PACKAGE = Path(zo_lightning.__file__).parent

# A part imports from itself and from earlier lines only; parts of one line do not know each other.
ORDER = (
    ("errors", "deadline", "imports", "kernels"),
    ("core", "config", "goodput", "supervisor"),
    ("directions", "queries", "estimators", "updates", "models", "tasks", "data"),
    ("backends",),
    ("checkpoint",),
    ("failure", "drain"),
    ("optim",),
    ("modules",),
    ("strategies", "export", "bench"),
    ("replay",),
    ("callbacks",),
    ("drill",),
    ("cli",),
)
LEVEL = {part: level for level, parts in enumerate(ORDER) for part in parts}

# Where a library may be imported at all, if not everywhere.
ONLY_IN = {
    "vllm": ("backends.vllm",),
    "hydra": ("cli", "config"),
    "omegaconf": ("cli", "config"),
    "lightning": ("imports", "data", "modules", "strategies", "callbacks", "drill", "cli"),
}
HEAVY = (
    "torch",
    "vllm",
    "transformers",
    "lightning",
    "datasets",
    "numba",
    "wandb",
    "tensorboard",
    "optuna",
    "joblib",
    "submitit",
)


def modules() -> dict[str, Path]:
    """Every module by its name inside the package; ``""`` is the package itself."""
    files = (file.relative_to(PACKAGE) for file in PACKAGE.rglob("*.py"))
    return {".".join(file.with_suffix("").parts).removesuffix("__init__").rstrip("."): PACKAGE / file for file in files}


def imports(file: Path) -> Iterator[str]:
    """Every import of a file, wherever it stands, as an absolute dotted name."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(module: str) -> str:
    return module.split(".")[0]


def own_imports(file: Path) -> set[str]:
    """The parts of the package that a file imports."""
    parts = {name.split(".")[1] for name in imports(file) if name.startswith("zo_lightning.")}
    return parts - {"__version__"}


def test_every_part_has_its_place() -> None:
    folders = {part_of(module) for module in modules() if module and part_of(module) != "conf"}
    assert folders == set(LEVEL)


def test_imports_follow_the_order() -> None:
    wrong = [
        f"{module} imports {other}"
        for module, file in modules().items()
        for other in own_imports(file)
        if other != part_of(module) and (not module or LEVEL[other] >= LEVEL[part_of(module)])
    ]
    assert not wrong


def test_only_the_command_line_imports_callbacks() -> None:
    users = {part_of(module) for module, file in modules().items() if "callbacks" in own_imports(file)}
    assert users <= {"callbacks", "cli"}


def test_core_needs_torch_and_the_standard_library_only() -> None:
    outside = {
        (module, name)
        for module, file in modules().items()
        if part_of(module) == "core"
        for name in imports(file)
        if part_of(name) not in sys.stdlib_module_names | {"torch", "zo_lightning"}
    }
    assert not outside


def test_libraries_stay_where_they_belong() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, file in modules().items()
        for name in imports(file)
        if not any(f"{module}.".startswith(f"{place}.") for place in ONLY_IN.get(part_of(name), (module,)))
    ]
    assert not wrong


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_composing_a_configuration_loads_nothing_heavy() -> None:
    code = f"""
import sys, zo_lightning, zo_lightning.cli.train, zo_lightning.cli.eval, zo_lightning.cli.export
from hydra import compose, initialize_config_module
from zo_lightning.config import register

register()
with initialize_config_module("zo_lightning.conf", version_base="1.3"):
    config = compose("train", ["model=tiny-llama", "backend=dense"])
print(config.model.name, [name for name in {HEAVY} if name in sys.modules])
"""
    assert run(code).strip() == "tiny-llama []"


def test_help_lists_the_groups_and_loads_nothing_heavy() -> None:
    code = f"""
import atexit, sys
from zo_lightning.cli.train import main

atexit.register(lambda: print([name for name in {HEAVY} if name in sys.modules]))
sys.argv = ["zo-train", "--help"]
main()
"""
    text = run(code)
    for group in ("model", "task", "direction", "query", "estimator", "update", "method", "backend"):
        assert f"\n{group}: " in text
    assert text.splitlines()[-1] == "[]"


@pytest.mark.skipif(find_spec("scipy") is None, reason="scipy comes with vLLM: without it nothing is put off")
def test_scipy_is_there_once_it_is_used() -> None:
    """Lightning and transformers import it for nothing that we use; its functions and modules work when called."""
    code = """
import sys
from zo_lightning.imports import import_lightning

import_lightning()
import transformers.loss.loss_for_object_detection as losses
import scipy.signal as bound

print("scipy.signal._signaltools" in sys.modules, "scipy.optimize._optimize" in sys.modules)
print([index.tolist() for index in losses.linear_sum_assignment([[2, 1], [1, 2]])])
print(bound.convolve([1, 2], [1, 1]).tolist())
from scipy import optimize, stats

print(float(stats.norm.cdf(0.0)), round(optimize.brentq(lambda x: x - 0.25, 0.0, 1.0), 6))
"""
    assert run(code).splitlines() == ["False False", "[[0, 1], [1, 0]]", "[1, 3, 2]", "0.5 0.25"]


def test_objects_that_last_are_let_go_at_the_end() -> None:
    """Else the C++ libraries beneath print pages about leaks when the process ends."""
    code = "from zo_lightning.cli.terminal import quiet_libraries; quiet_libraries()"
    if find_spec("triton") is not None:  # which torch brings with CUDA, and vLLM without
        code += "; import triton._C.libtriton"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stdout + done.stderr
