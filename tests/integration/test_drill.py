"""``zo-drill`` on real runs: a few kills here, many by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.command import composer, message
from zo_lightning.cli import drill

Facts = dict[str, Any]
ZERO = ("steps_lost", "digest_mismatches", "samples_repeated", "samples_missed", "flips_accepted")


@pytest.fixture
def drilled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Facts]:
    """Runs a drill and returns its JSON with its exit code."""

    def drilled(*overrides: str) -> Facts:
        code = 0
        try:
            drill.run(composer(tmp_path, [])(*overrides, name="drill"), overrides=overrides)
        except SystemExit as end:
            code = end.code
        return {**json.loads(capsys.readouterr().out.splitlines()[-1]), "code": code}

    return drilled


def test_killed_runs_lose_nothing(drilled: Callable[..., Facts]):
    facts = drilled("parts=[zo]", "kills=8", "drill_seed=2", "trainer.max_steps=40")
    assert facts["code"] == 0 and facts["kills"] == 8 and facts["lives"] > 8
    assert not any(facts[name] for name in ZERO)


def test_a_run_that_saves_now_and_then_is_caught(drilled: Callable[..., Facts]):
    """Lightning's own checkpoints: the steps behind the last one are made again, and the drill says so."""
    facts = drilled("parts=[zo]", "kills=3", "checkpoint=lightning", "drill_seed=4", "trainer.max_steps=20")
    assert facts["code"] == 1 and facts["steps_lost"] > 0 and facts["digest_mismatches"] == 0
    assert (Path(facts["folder"]) / "zo" / "run01" / "drill").is_dir()


def test_killed_first_order_runs_lose_no_more_than_they_may(drilled: Callable[..., Facts]):
    facts = drilled("parts=[adamw]", "adamw_kills=2", "drill_seed=1")
    assert facts["code"] == 0 and facts["kills"] == 2 and facts["steps_redone"] > 0
    assert not facts["steps_lost"] and not facts["digest_mismatches"]


@pytest.mark.slow
@pytest.mark.parametrize("foreach", ["true", "false"])
def test_fifty_kills_of_first_order_runs(foreach: str, drilled: Callable[..., Facts], tmp_path: Path):
    """Each of AdamW's kernels on the CPU, the one over all tensors at once and the loop."""
    own = [*composer(tmp_path, [])(name="drill").adamw, f"training.optimizer.foreach={foreach}"]
    quoted = ",".join(f"'{override}'" for override in own)
    facts = drilled("parts=[adamw]", "adamw_kills=25", f"adamw=[{quoted}]")
    assert facts["code"] == 0 and facts["kills"] == 25 and not facts["digest_mismatches"]


@pytest.mark.parametrize(
    ("words", "says"),
    [(["kills=0"], "`kills`=0 must be at least 1"), (["parts=[]"], "`parts` is empty: choose of zo, adamw, flips")],
)
def test_what_is_no_drill_is_refused(words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = composer(tmp_path, [])(*words, name="drill")
    assert says in message(capsys, lambda: drill.run(config))


@pytest.mark.slow
def test_two_hundred_kills_lose_nothing(drilled: Callable[..., Facts]):
    facts = drilled("parts=[zo,flips,crash_images]", "kills=200", "images=20000", "manifests=5000")
    assert facts["code"] == 0 and facts["kills"] == 200 and facts["kills_in_recovery"] > 10
    assert not any(facts[name] for name in ZERO)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["dense", "packed"])
def test_killed_commands_lose_nothing(backend: str, drilled: Callable[..., Facts]):
    facts = drilled("parts=[zo]", "kills=6", "lives=command", f"backend={backend}")
    assert facts["code"] == 0 and not any(facts[name] for name in ZERO)
