"""Plug-ins: wheels of others, installed beside ours, whose options are chosen like our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.errors import MissingConfigException

from tests.wheels import EXAMPLE_PLUGIN, ROOT, build_wheel, pip
from zo_lightning.config import instantiate, register
from zo_lightning.config.plugins import checked_plugins
from zo_lightning.errors import ConfigError

CHOICE = ["direction=rademacher", "task=comparison", "model=tiny-llama", "callbacks=none", "logger=none"]


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheel and the example's, installed into one folder."""
    built = build_wheel(sorted(EXAMPLE_PLUGIN.iterdir()), tmp_path_factory.mktemp("example"))
    site = tmp_path_factory.mktemp("site")
    pip("install", "--target", str(site), str(wheel), str(built))
    return site


def run(site: Path, folder: Path, *arguments: str) -> str:
    """What Python prints in a folder, with the installed wheels before all else."""
    command = [sys.executable, "-P", *arguments]
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_options_of_a_wheel_are_run_from_another_folder(site: Path, tmp_path: Path):
    script = str(site / "bin" / "zo-train")
    run(site, tmp_path, script, *CHOICE, "backend=dense", "debug=fdr", "hydra.run.dir=run")
    assert json.loads((tmp_path / "run" / "results.json").read_text())["steps"] == 1
    about = json.loads((tmp_path / "run" / "run.json").read_text())["identity"]
    assert about["direction._target_"] == "zo_example_plugin.direction.Rademacher"
    assert about["task._target_"] == "zo_example_plugin.task.Comparison"


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize("process", ["inline", "child"])
def test_the_vllm_worker_rebuilds_a_direction_of_a_wheel(site: Path, tmp_path: Path, process: str):
    pytest.importorskip("vllm", reason="needs vLLM")
    settings = [f"backend.process={process}", "trainer.max_steps=4", "data.batch_size=4", "task.num_test=8"]
    settings += ["trainer.val_check_interval=4", "direction.refresh_every=2", "hydra.run.dir=run"]
    run(site, tmp_path, str(site / "bin" / "zo-train"), *CHOICE, "backend=vllm", *settings)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["steps"] == 4 and results["skipped_steps"] == 0
    assert results["before"]["loss"] != results["after"]["loss"]


def test_help_and_the_search_path_show_plugins(site: Path, tmp_path: Path):
    script = str(site / "bin" / "zo-train")
    text = run(site, tmp_path, script, "--help")
    assert "\ndirection: low_rank, rademacher\n" in text
    lines = [line.split() for line in run(site, tmp_path, script, "--info", "searchpath").splitlines()]
    places = [line[1::2] for line in lines if line and line[0] == "|" and "://" in line[3]]
    assert places == [
        ["hydra", "pkg://hydra.conf"],
        ["main", "pkg://zo_lightning.conf"],
        ["example", "pkg://zo_example_plugin.conf"],
        ["schema", "structured://"],
    ]


def test_other_applications_of_the_environment_are_left_alone(site: Path, tmp_path: Path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("answer: 42\n")
    (tmp_path / "app.py").write_text("""\
import atexit, hydra, sys

@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config): print(config)

atexit.register(lambda: print([name for name in sys.modules if name.startswith(("zo_", "hydra_plugins.zo_"))]))
main()
""")
    text = run(site, tmp_path, "app.py", "--info", "searchpath")
    assert "zo_" not in text.splitlines()[-2] and "pkg://zo_" not in text
    assert text.splitlines()[-1] == "['hydra_plugins.zo_lightning_search_path']"


def test_the_documentation_shows_the_example_as_it_is():
    page = (ROOT / "docs" / "how-to" / "plugins.md").read_text()
    for name in ("pyproject.toml", "direction.py", "direction/rademacher.yaml"):
        (file,) = EXAMPLE_PLUGIN.rglob(name)
        assert file.read_text().strip() in page


class Site:
    """A folder on the path where plug-ins are put as an installation leaves them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, *options: str, package: str | None = None) -> None:
        package = package or f"{name}_package"
        about = self.folder / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[zo_lightning.plugins]\n{name} = {package}\n")
        for part in ("", "conf/" if options else ""):
            (self.folder / package / part).mkdir(exist_ok=True)
            (self.folder / package / part / "__init__.py").touch()
        for option in options:
            file = self.folder / package / "conf" / option
            file.parent.mkdir(exist_ok=True)
            file.write_text("_target_: torch.nn.Identity\n")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(str(tmp_path))
    register()
    yield Site(tmp_path)
    for name, module in list(sys.modules.items()):  # the next test has other packages of these names
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_plugins_that_offer_different_options_get_along(installed: Site):
    installed.add("one", "task/one.yaml")
    installed.add("two", "task/two.yaml", "query/one.yaml")
    assert [plugin.conf for plugin in checked_plugins()] == ["one_package.conf", "two_package.conf"]
    with initialize_config_module("zo_lightning.conf", version_base="1.3"):
        assert compose("train", ["task=two"]).task == {"_target_": "torch.nn.Identity"}


def test_one_option_of_two_plugins_is_refused(installed: Site):
    installed.add("one", "task/same.yaml")
    installed.add("two", "task/same.yaml")
    with pytest.raises(ConfigError, match=r"one \(one_package.conf\) and two \(two_package.conf\) .* task/same.yaml"):
        checked_plugins()


def test_one_option_of_a_plugin_and_ourselves_is_refused_before_composing(installed: Site):
    installed.add("greedy", "task/sst2.yaml")
    said = r"zo-lightning \(zo_lightning.conf\) and greedy \(greedy_package.conf\) both offer task/sst2.yaml"
    with pytest.raises(ConfigError, match=said), initialize_config_module("zo_lightning.conf", version_base="1.3"):
        pass


def test_a_command_says_a_clash_in_one_message(installed: Site):
    installed.add("greedy", "task/sst2.yaml")
    path = os.pathsep.join([str(installed.folder), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "zo_lightning.cli.train", "--help"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: zo-lightning") and "Traceback" not in done.stderr


def test_a_plugin_without_options_is_refused(installed: Site):
    installed.add("hollow")
    with pytest.raises(ConfigError, match=r"hollow \(hollow_package.conf\).*entry point"):
        checked_plugins()


def test_only_what_plugins_hold_is_instantiated(installed: Site):
    (installed.folder / "made").mkdir()
    (installed.folder / "made" / "__init__.py").write_text("def part(): return 'built'\n")
    (installed.folder / "made_up.py").write_text("def part(): return 'built'\n")
    with pytest.raises(ConfigError, match="outside"):
        instantiate({"_target_": "made.part"})
    installed.add("example", "task/made.yaml", package="made")
    assert instantiate({"_target_": "made.part"}) == "built"
    with pytest.raises(ConfigError, match=r"made_up.part` is outside .*, made:"):
        instantiate({"_target_": "made_up.part"})


def test_a_mistyped_option_lists_those_of_plugins(installed: Site):
    installed.add("one", "task/ours.yaml")
    with (
        initialize_config_module("zo_lightning.conf", version_base="1.3"),
        pytest.raises(MissingConfigException, match="\tours\n\trecord\n\tsentiment"),
    ):
        compose("train", ["task=our"])
