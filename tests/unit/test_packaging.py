"""What is declared, shipped and linked. Faults here show only on other people's machines."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from omegaconf import OmegaConf
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import zo_lightning
from tests.wheels import ROOT

PACKAGE = ROOT / "zo_lightning"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = {"hydra": "hydra-core"}  # where the import has another name


def declared(*extras: str) -> dict[str, Requirement]:
    """Requirements of the project and some of its extras, by canonical name."""
    lines = PROJECT["dependencies"] + [line for name in extras for line in PROJECT["optional-dependencies"][name]]
    requirements = map(Requirement, lines)
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def test_malicious_lightning_releases_are_excluded() -> None:
    allowed = declared()["lightning"].specifier
    assert not allowed.contains("2.6.2")
    assert not allowed.contains("2.6.3")
    assert allowed.contains("2.6.6")


def test_what_the_code_imports_is_declared_and_nothing_else() -> None:
    trees = [ast.parse(file.read_text()) for file in PACKAGE.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    tops = {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"zo_lightning"}
    assert {canonicalize_name(DISTRIBUTIONS.get(top, top)) for top in tops} == declared("vllm", "wandb").keys()


def test_root_folders_are_links_into_the_package() -> None:
    for name in ("conf", "callbacks"):
        assert (ROOT / name).is_symlink()
        assert (ROOT / name).resolve() == PACKAGE / name


def test_the_wheel_holds_configuration_types_and_no_further_top_level_name(wheel: Path) -> None:
    shipped = set(zipfile.ZipFile(wheel).namelist())
    local = PACKAGE / "conf" / "local"  # a machine's own settings
    yaml = {str(file.relative_to(ROOT)) for file in PACKAGE.rglob("*.yaml") if local not in file.parents}
    assert {name for name in shipped if name.endswith(".yaml")} == yaml
    assert "zo_lightning/py.typed" in shipped
    tops = {name.split("/")[0] for name in shipped if ".dist-info/" not in name}
    assert tops == {"zo_lightning", "hydra_plugins"}
    assert "hydra_plugins/__init__.py" not in shipped  # a namespace that other plug-ins share
    assert any(name.endswith("/licenses/LICENSE") for name in shipped)


def test_the_wheel_composes_its_configuration_in_another_folder(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import sys; from zo_lightning.cli.train import main; sys.argv = ['zo-train', '--cfg', 'job']; main()"
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    # -P: nothing but PYTHONPATH and the installed packages
    printed = subprocess.run(
        [sys.executable, "-P", "-c", f"import zo_lightning; print(zo_lightning.__file__); {code}"],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert printed.startswith(str(tmp_path / "site"))
    assert "name: smollm2-135m" in printed


def test_what_is_said_about_the_project_agrees() -> None:
    citation = OmegaConf.load(ROOT / "CITATION.cff")
    assert citation.version == zo_lightning.__version__
    assert citation.license == PROJECT["license"]


def test_the_workflow_is_what_ci_runs() -> None:
    job = OmegaConf.load(ROOT / ".github" / "workflows" / "ci.yml").jobs.ci
    assert [step.run for step in job.steps if "run" in step] == [".ci/run"]
    assert all("@v" in step.uses for step in job.steps if "uses" in step)
