"""``zo-goodput`` as a user types it."""

from __future__ import annotations

import csv
import errno
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.errors import ConfigCompositionException
from omegaconf.errors import OmegaConfBaseException

from tests.command import message
from zo_lightning.cli import goodput
from zo_lightning.cli.goodput_scenario import scenario_of
from zo_lightning.config import register
from zo_lightning.goodput.failures import Failures
from zo_lightning.goodput.model import Job
from zo_lightning.goodput.scenario import Scenario, Tier

Ask = Callable[..., tuple[str, dict]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Ask:
    """What ``zo-goodput`` prints in an empty folder, and its line of JSON."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, width: int = 120) -> tuple[str, dict]:
        monkeypatch.setattr(sys, "argv", ["zo-goodput", *words])
        monkeypatch.setenv("COLUMNS", str(width))
        goodput.main()
        said, line = capsys.readouterr().out.rstrip("\n").rsplit("\n", 1)
        return said, json.loads(line)

    return run


def scenario(*overrides: str) -> Scenario:
    register()
    with initialize_config_module("zo_lightning.conf", version_base="1.3"):
        return scenario_of(compose("goodput", ["command=table", *overrides]))


def test_the_default_configuration_is_that_of_the_library() -> None:
    assert scenario() == Scenario(job=Job(), k=1)
    assert scenario("goodput=post") == Scenario(job=Job(), k=1, legacy_credit=True)


def test_every_field_of_the_library_is_a_key(tmp_path: Path) -> None:
    register()
    with initialize_config_module("zo_lightning.conf", version_base="1.3"):
        keys = set(compose("goodput", ["command=table"]).goodput)
    chosen = {"job", "k", "target", "legacy_credit", "failures"}
    assert keys == {f.name for kind in (Job, Failures, Scenario) for f in fields(kind)} - chosen
    (tmp_path / "trace").write_text("10\n20 # a switch\n")
    found = scenario(
        f"goodput.trace={tmp_path / 'trace'}",
        "goodput.law=trace",
        "goodput.tiers=[{name:local,every:5,survives_rack:0.5}]",
    )
    assert found.failures == Failures(law="trace", trace=(10.0, 20.0))
    assert found.tiers == (Tier(name="local", every=5, survives_rack=0.5),)


def test_the_table_ends_with_rows_in_per_cent(ask: Ask) -> None:
    said, answer = ask("table", "out=made")
    rows = {(row["n"], row["target"]): row for row in answer["rows"]}
    assert len(rows) == 25 and answer["command"] == "table"
    newest = rows[16_384, "newest"]
    assert {"n", "k", "target", "goodput", "rework", "restart", "tax"} <= newest.keys()
    assert newest["goodput"] == pytest.approx(93.33, abs=0.01) and newest["restart"] == pytest.approx(3.43, abs=0.01)
    for row in rows.values():
        assert abs(row["simulated"] - row["exact"]) <= 4 * row["error"]
        assert f"{row['simulated']:.2f} ± {1.96 * row['error']:.2f}" in said
    assert answer["files"] == ["made/table.csv", "made/breakdown.png", "made/breakdown.svg"]
    with open("made/table.csv") as file:
        assert [float(row["goodput"]) for row in csv.DictReader(file)] == [row["goodput"] for row in answer["rows"]]


def test_nothing_is_written_without_a_folder(ask: Ask) -> None:
    assert ask("table", "failures=0")[1]["files"] == []
    assert not list(Path().iterdir())


def test_the_posts_preset_is_its_table_with_the_true_drains_beside_it(ask: Ask) -> None:
    said, answer = ask("table", "goodput=post")
    found = {(row["n"], row["target"]): (row["k"], round(row["goodput"], 2)) for row in answer["rows"]}
    assert found[65_536, "none"] == (10, 81.67) and found[512, "blocking"] == (2000, 96.44)
    assert "serial" in said and {round(row["serial"], 2) for row in answer["rows"]} >= {74.97, 90.99}
    assert "goodput.tax" not in said


def test_the_sweep_shows_targets_side_by_side(ask: Ask) -> None:
    said, answer = ask("sweep", "ks=[30,60]", "failures=0")
    assert len(answer["rows"]) == 10 and "newest" in said and "91.45" in said
    assert "one after the other" not in said
    said, _ = ask("sweep", "ks=[3,60]", "failures=0")
    assert "Drains take 30 steps, one after the other: where k is less, it is 30 for them." in said
    said, answer = ask("sweep", "legacy_credit=true", "ks=[3]", "targets=[none]", "failures=0")
    assert "93.48" in said and "90.99" in said
    assert {row["n"] for row in ask("sweep", "ks=[30]", "devices=[512,2048]", "failures=0")[1]["rows"]} == {512, 2048}


def test_the_breakdown_draws_losses(ask: Ask) -> None:
    said, answer = ask("breakdown", "failures=0", "devices=[512,65536]", "out=made")
    assert "█ rework" in said and "idle" not in said
    assert Path("made/breakdown.svg").is_file() and len(answer["rows"]) == 10


def test_what_if_says_what_changes_are_worth(ask: Ask) -> None:
    said, answer = ask("what-if", "failures=200")
    gains = [row["gain"] for row in answer["rows"][1:]]
    assert gains == sorted(gains, reverse=True) and answer["rows"][0]["change"] is None
    assert "a restart in 40 s instead of 390" in said and "+2.91" in said


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("command", ["table", "sweep", "breakdown", "what-if"])
def test_it_fits_the_terminal(ask: Ask, command: str, width: int) -> None:
    said, _ = ask(command, "failures=50", width=width)
    assert max(map(len, said.splitlines())) <= width and "…" not in said


def test_so_many_days_are_so_many_failures(ask: Ask) -> None:
    """A year of a million devices is one command."""
    _, answer = ask("table", "devices=[1000000]", "days=365", "targets=[newest]")
    (row,) = answer["rows"]
    assert row["error"] < 0.2 and abs(row["simulated"] - row["exact"]) < 4 * row["error"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["goodput.tax=nan"], "`goodput.tax`=nan"),
        (["goodput.step_seconds=-1"], "`goodput.step_seconds`=-1.0"),
        (["goodput.law=trace"], "`goodput.trace` is empty"),
        (["days=0.001"], "`goodput.drain_steps`=30: a drain takes 0.00243 days, longer than the run of `days`=0.001"),
        (["days=nan"], "`days`=nan"),
        (["k=0"], "`k`=0"),
        (["k=10"], "`k`=10: a drain takes 30 steps"),
        (["k=abc"], "`k`=abc"),
        (["k={nun:10}"], "`k.nun`"),
        (["k={none:[1,2]}"], "`k.none` has 2 intervals for 5 `devices`"),
        (["devices=[]"], "`devices` is empty"),
        (["devices=[0]"], "`devices`=0"),
        (["ks=[-3]"], "`ks`=-3"),
        (["failures=-1"], "`failures`=-1"),
        (["failures=1"], "`failures`=1"),
        (["failures=0", "goodput.spares=1"], "`failures`=0"),
        (["seed=-1"], "`seed`=-1"),
        ([f"out={__file__}"], "is no folder"),
        ([f"out={__file__}/deeper"], "is no folder"),
        (["out="], "is no folder"),
        (["goodput.mtbf_hours=inf"], "`goodput.mtbf_hours`=inf"),
        (["goodput.drain_steps=100000000"], "`goodput.drain_steps`=100000000"),
        (["goodput.shape=0.7"], "`goodput.shape`=0.7: `goodput.law=exponential` has none"),
        (["goodput.detection_seconds=1e308"], "`goodput.detection_seconds`=1e+308"),
        (["failures=1000000000"], "`failures`=1000000000"),
        (["days=1e9"], "`days`=1e+09"),
    ],
)
def test_bad_input_is_refused_by_its_key(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["zo-goodput", "table", "out=made", *words])
    assert said in message(capsys, goodput.main)
    assert not list(tmp_path.iterdir())


def keys() -> list[str]:
    register()
    with initialize_config_module("zo_lightning.conf", version_base="1.3"):
        config = compose("goodput", ["command=table"])
    asked = [key for key in config if key not in ("command", "out", "goodput", "paths")]
    tier = [f"goodput.tiers.near.{field.name}" for field in fields(Tier) if field.name != "name"]
    return [*asked, *(f"goodput.{key}" for key in config.goodput if key != "tiers"), *tier]


BESIDE = {  # without which a key has no say
    "goodput.shape": ["goodput.law=weibull"],
    "goodput.straggler_share": ["goodput.straggler_slowdown=2"],
    "goodput.straggler_slowdown": ["goodput.straggler_share=0.1"],
    "goodput.repair_seconds": ["goodput.spares=1"],
}


@pytest.mark.slow  # 40 s
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("key", keys())
def test_extremes_of_every_key_are_answered_or_refused_by_it(
    key: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answered = []
    for value in ("0", "inf", "nan", "1e308", "1e30", "1e-30", "1e-308", "-1"):
        words = ["command=table", "devices=[16384]", "failures=20", *BESIDE.get(key, [])]
        if key.startswith("goodput.tiers.near."):
            words.append(f"goodput.tiers=[{{name:near,{key.rpartition('.')[2]}:{value}}}]")
        else:
            words.append(f"{key}=[{value}]" if key in ("devices", "targets", "ks") else f"{key}={value}")
        said = _answer_or_refusal(words, capsys)
        if said is None:
            answered.append(value)
        else:
            assert key.rpartition(".")[2] in said, (value, said)
    assert len(answered) < 8


def _answer_or_refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str | None:
    """What is said against the words; None for a table of numbers."""
    try:
        with initialize_config_module("zo_lightning.conf", version_base="1.3"):
            config = compose("goodput", words)
    except (ConfigCompositionException, OmegaConfBaseException) as refused:
        return str(refused)
    try:
        goodput.run(config)
    except SystemExit:
        return capsys.readouterr().err
    rows = json.loads(capsys.readouterr().out.rstrip("\n").rsplit("\n", 1)[1])["rows"]
    for row in rows:
        shares = [row[name] for name in ("goodput", "rework", "restart", "tax", "stall", "idle")]
        assert all(0 <= share <= 100 for share in shares) and sum(shares) == pytest.approx(100, abs=1e-5)
    return None


RUN = (
    "step_seconds=7",
    "mtbf_hours=50000",
    "devices=16384",
    "drain_steps=30",
    "tax=0.03",
    "save_seconds=210",
    "detection_seconds=30",
    "relaunch_seconds=360",
)


def test_advice_for_a_run_that_flags_describe(ask: Ask) -> None:
    said, answer = ask("advise", *RUN, width=60)
    assert (answer["way"], answer["k"], answer["target"]) == ("drain", 52, "newest")
    assert answer["goodput"] == pytest.approx(93.33, abs=0.01) and "52 steps" in said
    assert max(map(len, said.splitlines())) <= 60


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "`step_seconds`"),
        ([*RUN, "k=10", "target=none"], "`k`=10"),
        ([*RUN, "tax=nan"], "`tax`=nan"),
        (["run_dir=nowhere"], "`run_dir=nowhere`"),
    ],
)
def test_advice_is_refused_by_the_key_that_is_missing_or_wrong(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["zo-goodput", "advise", *words])
    assert said in message(capsys, goodput.main)


def test_the_command_needs_no_torch_and_no_matplotlib_unless_it_draws(tmp_path: Path) -> None:
    code = """
import sys
from zo_lightning.cli.goodput import main

sys.argv = ["zo-goodput", *sys.argv[1:]]
main()
print([name for name in ("torch", "lightning", "transformers", "datasets", "vllm") if name in sys.modules])
print("matplotlib" in sys.modules)
"""
    table = ["table", "failures=100"]
    for words, drawn in ((table, "False"), ([*table, "out=made"], "True"), (["advise", *RUN], "False")):
        command = [sys.executable, "-c", code, *words]
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        assert done.stdout.splitlines()[-2:] == ["[]", drawn] and not done.stderr


def test_the_library_needs_neither_torch_nor_hydra() -> None:
    code = """
import sys
from zo_lightning.goodput.changes import what_if
from zo_lightning.goodput.plots import draw_breakdown
from zo_lightning.goodput.scenario import Scenario

what_if(Scenario(k=52, target="none"), failures=100)
print([name for name in ("torch", "hydra", "omegaconf", "matplotlib", "lightning") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_what_cannot_be_written_leaves_earlier_files_and_the_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The disk is full behind the first file."""
    (tmp_path / "table.csv").write_text("earlier")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("zo_lightning.cli.goodput_answers.draw_breakdown", full)
    monkeypatch.setattr(sys, "argv", ["zo-goodput", "table", "failures=0", f"out={tmp_path}"])
    with pytest.raises(SystemExit):
        goodput.main()
    told = capsys.readouterr()
    assert f"`out`={tmp_path}" in told.err and "No space left" in told.err and "Traceback" not in told.err
    assert json.loads(told.out.splitlines()[-1])["files"] == []
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]
    assert (tmp_path / "table.csv").read_text() == "earlier"


def test_a_trace_that_is_no_text_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "failures.txt").write_bytes(b"\xff\xfe\x00")
    words = ["goodput.law=trace", f"goodput.trace={tmp_path / 'failures.txt'}"]
    monkeypatch.setattr(sys, "argv", ["zo-goodput", "table", *words])
    assert "is no number" in message(capsys, goodput.main)
