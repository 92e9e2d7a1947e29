"""Every command of README and docs works: it is run here, shortened, or it says what it needs that is not here."""

from __future__ import annotations

import itertools
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.documented import ROOT, Command, commands, python_blocks
from zo_lightning.cli import bench as zo_bench
from zo_lightning.cli import drill as zo_drill
from zo_lightning.cli import eval as zo_eval
from zo_lightning.cli import export as zo_export
from zo_lightning.cli import goodput as zo_goodput
from zo_lightning.cli import replay as zo_replay
from zo_lightning.cli import sweep_report as zo_sweep_report
from zo_lightning.cli import train as zo_train
from zo_lightning.models import prepare_model

PROGRAMS: dict[str, Callable[[], object]] = {
    "zo-train": zo_train.main,
    "zo-eval": zo_eval.main,
    "zo-export": zo_export.main,
    "zo-bench": zo_bench.main,
    "zo-goodput": zo_goodput.main,
    "zo-replay": zo_replay.main,
    "zo-drill": zo_drill.main,
    "zo-sweep-report": zo_sweep_report.main,
}
# What makes a run short. It stands behind the documented settings, and so wins.
SHORT = (
    "model=tiny-llama",
    "model.path=null",
    "backend=fake",
    "trainer.max_steps=3",
    "trainer.val_check_interval=2",
)
SMALL = ("task.num_train=20", "task.num_dev=8", "task.num_test=8")
SHORT_BENCH = (
    "model=tiny-llama",
    "backend=packed",
    "rounds=1",
    "warm_up=0",
    "ranks=[8,16]",
    "points=[2,4]",
    "starts=1",
)
SHORT_DRILL = ("kills=1", "adamw_kills=1", "backend=fake", "images=20", "manifests=20", "trainer.max_steps=10")
# Commands that other tests run, on real parts: the words that say so there.
ELSEWHERE = {
    "zo-bench tries": ("test_candidate_tries.py", '"tries", "model=tiny-llama"'),
    "zo-train direction=rademacher task=comparison": (
        "test_plugins.py",
        '"direction=rademacher", "task=comparison"',
    ),
    "pip install ./examples/plugin": ("test_plugins.py", "EXAMPLE_PLUGIN.iterdir()"),
    "zo-train model=tiny-llama backend=dense trainer=ddp_sim": ("test_ddp.py", 'TWO = "trainer=ddp_sim"'),
    "python -m zo_lightning.cli.drain_tax experiment=adamw_drill": ("test_adamw_drill.py", "drain_tax.measured(config"),
    "zo-goodput advise run_dir=outputs/DAY/RUN": ("test_goodput_live.py", '"advise", f"run_dir={zeroth.folder}"'),
    "python train.py supervise=true": ("test_supervise.py", '"supervise=true", f"hydra'),
    "python train.py supervise=true supervise.spare=true": ("test_supervise.py", '"supervise.spare=true", f"hydra'),
    "python train.py supervise.spare=true failure=kill failure.kill.step=140 trainer.max_steps=150": (
        "test_supervise.py",
        '"supervise.spare=true", f"hydra',
    ),
    "python train.py supervise=true failure=kill failure.kill.step=20": (
        "test_supervise.py",
        '"failure=kill", "failure.kill.step=5", "supervise=true"',
    ),
    "python train.py supervise=true failure=poisson failure.poisson.per_step=0.05": (
        "test_supervise.py",
        '"supervise=true", "failure=poisson", "failure.poisson.per_step=0.1"',
    ),
    "python train.py backend.process=child": ("test_cli.py", '"backend.process=child"'),
}
ALL = tuple({command.text: command for command in commands()}.values())
BENCHMARKS = tuple(command for command in ALL if command.text.startswith("python benchmarks/"))
PYTHON = tuple(block for block in python_blocks() if "/path/to/" not in block)
COUNTER = itertools.count()
QUICK = tuple(command for command in ALL if command not in BENCHMARKS)


def number(command: Command) -> str:
    return f"{command.page}: {command.text[:60]}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages speak of."""
    folder = tmp_path_factory.mktemp("documented")
    rows = [{"text": f"message {i}", "priority": ("low", "high")[i % 2]} for i in range(40)]
    reviews = [{"sentence": f"film {i}", "label": i % 2} for i in range(600)]  # the benchmark asks for as many
    questions = [{"question": f"{i} is", "choice1": "odd", "choice2": "even", "label": 1 - i % 2} for i in range(40)]
    names = [
        {"text": f"{i}:", "names": ["Ann", "Ben", "Cem"][: 2 + i % 2], "answer": ["Ben", "Ann"]} for i in range(40)
    ]
    for name, content in {
        "questions.jsonl": questions,
        "names.jsonl": names,
        "train.jsonl": rows,
        "test.jsonl": rows,
        "data/sst2_train.jsonl": reviews,
        "data/sst2_validation.jsonl": reviews,
    }.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    page = (ROOT / "docs" / "how-to" / "own-data.md").read_text()
    shutil.copytree(prepare_model(name="tiny", path=None, source="tiny-llama").folder, folder / "models" / "mine")
    (folder / "my_conf" / "task").mkdir(parents=True)
    (folder / "my_conf" / "task" / "support.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    return folder


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, list[str]], None]:
    """Run one of our programs in that folder, in this process."""

    def run(program: str, words: list[str]) -> None:
        monkeypatch.chdir(place)
        monkeypatch.setattr(sys, "argv", [program, *words])
        try:
            PROGRAMS[program]()
        except SystemExit as end:
            assert not end.code, end.code

    return run


@pytest.fixture
def earlier(place: Path, run: Callable[[str, list[str]], None]) -> None:
    """The runs and the sweep that the pages go on with."""
    if (place / "runs").exists():
        return
    for folder in ("runs/first", "outputs/DAY/RUN"):
        run("zo-train", [*SHORT, *SMALL, "trainer.max_steps=2", f"hydra.run.dir={folder}"])
    checkpoints = place / "outputs/DAY/RUN/checkpoints"
    shutil.copy(checkpoints / "last.ckpt", checkpoints / "best.ckpt")
    run("zo-train", ["-m", *SHORT, *SMALL, "seed=1,2", "hydra.sweep.dir=multirun/DAY/TIME"])


def test_the_pages_have_commands():
    assert len(ALL) > 50
    assert {command.page for command in commands()} >= {"README.md", "docs/first-run.md", "docs/how-to/sweeps.md"}


@pytest.mark.parametrize("command", QUICK, ids=number)
def test_a_documented_command_works(
    command: Command,
    place: Path,
    run: Callable[[str, list[str]], None],
    earlier: None,
    monkeypatch: pytest.MonkeyPatch,
):
    for name, value in re.findall(r"([A-Z_]+)=(\S+) python", command.text):
        monkeypatch.setenv(name, value)
    if (alone := command.text.split("  #")[0].rstrip()) in ELSEWHERE:
        file, words = ELSEWHERE[alone]
        assert words in (Path(__file__).parent / file).read_text()
        return
    program, words = as_run(command)
    drilled = program == "zo-drill" and words  # the plain command runs; test_drill.py runs each part
    if drilled or (program in ("zo-train", "zo-eval") and command.needs):
        run(program, ["--cfg", "job", *words])  # composes, at least
    elif program in PROGRAMS:
        run(program, shortened(program, words))
    elif program == "make":
        subprocess.run([program, "--dry-run", *words], cwd=ROOT, check=True, capture_output=True)
    elif program == "pytest":
        assert (ROOT / words[0]).is_file()  # it is one of the tests
    elif program == "pip":
        (extra,) = re.findall(r"\.\[(\w+)\]", command.text) or ["dev"]
        assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()
    elif program == "tensorboard":
        subprocess.run([sys.executable, "-m", "tensorboard.main", "--inspect", *words], cwd=place, check=True)
    else:
        assert command.needs, "a command that no test runs says what it needs"


@pytest.mark.parametrize("script", ["train.py", "eval.py"])
def test_the_scripts_of_the_root_are_the_programs(script: str, place: Path):
    done = subprocess.run([sys.executable, ROOT / script, "--cfg", "job"], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0 and "name: smollm2-135m" in done.stdout


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.strip().splitlines()[0][:60])
def test_documented_python_runs(block: str, place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(place)
    script = place / "documented.py"
    script.write_text(block)
    runpy.run_path(str(script))


@pytest.mark.parametrize("command", BENCHMARKS, ids=number)
def test_a_documented_benchmark_exists(command: Command):
    assert (ROOT / command.words[1]).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("command", BENCHMARKS, ids=number)
def test_a_documented_benchmark_works(command: Command, place: Path):
    _, script, *options = command.words
    short = {
        "benchmarks/gpu_step.py": ("--shape", "tiny", "--steps", "2"),
        "benchmarks/checkpoint_store.py": ("--rows", "4096", "--stages", "2"),
    }
    done = subprocess.run([sys.executable, ROOT / script, *options, *short[script]], cwd=place, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def as_run(command: Command) -> tuple[str, list[str]]:
    """The program and its arguments, without what prepares the shell."""
    text = re.sub(r"^(?:\. \S+ && |[A-Z_]+=\S+ )", "", command.text)
    text = re.sub(r'^eval "\$\((.*)\)"', r"\1", text)
    text = re.sub(r"^(?:\.venv/bin/)?python (train|eval)\.py", r"zo-\1", text)
    program, *words = Command(command.page, text.removeprefix(".venv/bin/"), None).words
    places = {"/data": "data", "DIR": "data", "/models/mine": "models/mine"}
    return program, [re.sub(r"(?<==)(/data|DIR|/models/mine)$", lambda found: places[found[1]], word) for word in words]


def shortened(program: str, words: list[str]) -> list[str]:
    """With settings that make it short; what only prints stays as it is."""
    settings = [word for word in words if not word.startswith("-")]
    if program == "zo-bench":
        quick = any(word in words for word in ("traffic", "--help"))
        return words if quick else [*words, *SHORT_BENCH, *SMALL, f"hydra.run.dir=outputs/{next(COUNTER)}"]
    if program == "zo-drill":
        return [*words, *SHORT_DRILL, f"hydra.run.dir=outputs/{next(COUNTER)}"]
    if program != "zo-train" or any(flag in words for flag in ("--help", "--cfg", "--info", "-sc")):
        return words
    if any(word.startswith("ckpt_path=") for word in settings):
        return [*words, "trainer.max_steps=3"]
    # Runs of one second and one process would have one folder.
    folder = [f"hydra.{'sweep' if '-m' in words else 'run'}.dir=outputs/{next(COUNTER)}"]
    own_model = ["model.path=models/mine"] if any(word.startswith("model.path=") for word in words) else []
    trials = ["hydra.sweeper.n_trials=2"] if any("optuna" in word for word in words) else []
    dirs = [] if any(".dir=" in word for word in words) else folder
    own_backend = ["backend=packed"] if "backend=packed" in words else []
    return [*words, *SHORT, *SMALL, *own_model, *own_backend, *trials, *dirs]
