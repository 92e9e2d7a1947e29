"""``zo-replay`` on runs of the command line: any step, bit for bit, and forks that end as the run did."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.command import bank, message
from zo_lightning.backends.digest import digest_factors
from zo_lightning.backends.fake import FakeBackend
from zo_lightning.cli import replay as zo_replay
from zo_lightning.cli import train as zo_train
from zo_lightning.errors import JournalError
from zo_lightning.replay import read_run

SETTINGS = [
    "model=tiny-llama",
    "backend=fake",
    "task.num_train=40",
    "task.num_dev=16",
    "task.num_test=32",
    "trainer.val_check_interval=null",
    "direction.refresh_every=3",
]
STEPS = 11


def call(program: Any, *words: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["program", *map(str, words)])
        program.main()


def train(folder: Path, *words: str, patch: Callable[[pytest.MonkeyPatch], None] = lambda patch: None) -> Path:
    with pytest.MonkeyPatch.context() as context:
        patch(context)
        call(zo_train, *SETTINGS, f"trainer.max_steps={STEPS}", f"hydra.run.dir={folder}", *words)
    return folder


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, str]]:
    """A run with a skipped step at a stage's start, and its digests while it went."""
    digests: dict[int, str] = {}

    def watch(patch: pytest.MonkeyPatch) -> None:
        commit, evaluate = FakeBackend.commit, FakeBackend.evaluate

        def watched(self: FakeBackend, record: Any) -> None:
            commit(self, record)
            digests[self.version] = digest_factors(self.snapshot())

        def not_a_number(self: FakeBackend, requests: Any) -> Any:
            seen = evaluate(self, requests)
            if requests[0].point.terms and self.version == 6:
                return tuple(type(s)(losses=(float("nan"),) * len(s.losses), weights=s.weights) for s in seen)
            return seen

        patch.setattr(FakeBackend, "commit", watched)
        patch.setattr(FakeBackend, "evaluate", not_a_number)

    folder = train(tmp_path_factory.mktemp("runs") / "live", patch=watch)
    return folder, {step: digest for step, digest in digests.items() if step <= STEPS}


@pytest.fixture
def replayed(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    def replayed(*words: Any) -> dict[str, Any]:
        capsys.readouterr()
        call(zo_replay, *words)
        facts: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return facts

    return replayed


def test_every_step_is_rebuilt_bit_for_bit(live, replayed):
    folder, digests = live
    for step in (1, 6, 7, 10):  # step 7 took a slot without a term
        assert replayed("at", folder, f"step={step}")["digest"] == digests[step]


def test_a_whole_run_is_verified(live, replayed):
    facts = replayed("verify", folder := live[0])
    assert facts["good"] and facts["steps"] == STEPS and not facts["problems"]
    assert facts["checked"] == 2 + len(list((folder / "checkpoints/store/manifests").glob("*"))) + 1


def test_damage_is_named_and_left_out(live, replayed, tmp_path, capsys):
    source, digests = live
    folder = shutil.copytree(source, tmp_path / "damaged")
    damaged = folder / "checkpoints" / "last.ckpt"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(SystemExit) as stop:
        call(zo_replay, "verify", folder)
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert stop.value.code == 2 and facts["wrong"] == [str(damaged)]
    stray = folder / "checkpoints" / "store" / "blocks" / ("0" * 64)
    stray.write_bytes(b"not what its name says")
    with pytest.raises(SystemExit):
        call(zo_replay, "verify", folder)
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["wrong"] == [str(folder / "checkpoints" / "store"), str(damaged)]
    stray.unlink()
    assert replayed("at", folder)["digest"] == digests[STEPS]
    (journal,) = (folder / "checkpoints" / "journal" / "rank0").glob("*.wal")
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 1
    journal.write_bytes(data)
    assert f"{journal}: 64 bytes at offset" in message(capsys, lambda: call(zo_replay, "verify", folder))


def test_the_newest_step_can_be_had_with_damage_before_a_sound_snapshot(live, tmp_path):
    folder = shutil.copytree(live[0], tmp_path / "damaged")
    (journal,) = (folder / "checkpoints" / "journal" / "rank0").glob("*.wal")
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 1
    journal.write_bytes(data)
    with pytest.raises(JournalError, match="64 bytes at offset"):
        read_run(folder)
    run = read_run(folder, newest=True)
    assert run.num_steps < STEPS == run.saved[-1].step and "64 bytes at offset" in run.recovered.problems[0]


def test_a_fork_ends_as_the_run_did(live, replayed, tmp_path):
    folder, _ = live
    out = tmp_path / "8.ckpt"
    replayed("at", folder, "step=8", f"out={out}")
    fork = train(tmp_path / "fork", f"ckpt_path={out}")
    assert digest_factors(bank(fork)) == digest_factors(bank(folder))
    saved, was = (torch.load(f / "checkpoints/last.ckpt", weights_only=True) for f in (fork, folder))
    for part in ("loops", "optimizer_states", "lr_schedulers", "global_step", "epoch"):
        assert saved[part] == was[part]
    assert replayed("diff", fork, folder)["first_difference"] is None
    assert replayed("verify", fork)["good"]


def test_steps_are_left_out(live, replayed, tmp_path):
    folder, digests = live
    out = folder / "checkpoints" / "mended.ckpt"
    facts = replayed("skip", folder, "without=[6]")  # which had none
    assert facts["digest"] == digests[STEPS]
    facts = replayed("skip", folder, "without=[4,5]", f"out={out}")
    assert facts["digest"] != digests[STEPS]
    whole, mended = bank(folder), bank(folder, "mended")
    assert mended["slots"] == whole["slots"] and mended["version"] == STEPS
    same = [torch.equal(mended["left"][:, i : i + 2], whole["left"][:, i : i + 2]) for i in range(0, 8, 2)]
    assert same == [True, False, True, True]  # steps 4 and 5 are of the second stage
    # It is no state of the run: nothing is rebuilt from it.
    assert replayed("verify", folder)["good"] and replayed("at", folder)["digest"] == digests[STEPS]
    fork = train(tmp_path / "fork", f"ckpt_path={out}", f"trainer.max_steps={STEPS + 2}")
    assert replayed("verify", fork)["good"]


def test_runs_that_part_are_compared(live, replayed, tmp_path):
    other = train(tmp_path / "other", "update.lr=2e-6")
    facts = replayed("diff", live[0], other)
    assert facts["first_difference"] == 0 and facts["what"] == ["lr: 1e-06 and 2e-06"]
    assert facts["distance"]["1"] == pytest.approx(0.5, rel=1e-6)  # half as far from the base
    assert facts["distance"][str(STEPS)] > 0.1


def test_a_step_is_exported(live, replayed, tmp_path):
    facts = replayed("export", live[0], "step=5", f"out={tmp_path / 'adapter'}")
    assert facts["steps"] == 5 and facts["checkpoint"] == f"{live[0]} at step 5"
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize("backend", ["fake", pytest.param("dense", marks=pytest.mark.slow)])
def test_a_merge_is_repeated_on_a_backend(replayed, tmp_path, backend):
    settings = ("bank.policy=merge", "bank.capacity=4", f"backend={backend}")
    folder = train(tmp_path / "run", *settings)
    assert bank(folder)["num_merged"] == 1
    assert replayed("verify", folder)["good"]


def test_a_run_goes_on_with_more_steps(live, replayed, tmp_path):
    """Its bank and with it the method's cycle grow."""
    folder = train(tmp_path / "run")
    call(zo_train, f"ckpt_path={folder}", "trainer.max_steps=20")
    assert replayed("verify", folder)["steps"] == 20


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["verify"], "the folder of a run is missing"),
        (["verify", "nowhere"], "nowhere is not the folder of a run"),
        (["verify", "{empty}"], "has no journal"),
        (["at", "{run}", "step=12"], "`step=12` is not in the journal, which ends after 11 steps"),
        (["at", "{run}", "step=0", "out={empty}/x.ckpt"], "`step=0` is the base alone"),
        (["at", "{run}", "out={run}/results.json"], "is there already"),
        (["skip", "{run}"], "`without` is missing"),
        (["skip", "{run}", "without=[11]"], r"`without` has [11]"),
        (["diff", "{run}"], "the other run is missing"),
        (["export", "{run}"], "`out` is missing"),
        (["at", "{run}", "bank.policy=merge", "backend=vllm"], "add `backend=dense`"),
        (["rewind", "{run}"], "there is no subcommand `rewind`"),
    ],
)
def test_what_cannot_be_done_is_said(live, tmp_path, capsys, words, named):
    places = {"run": live[0], "empty": tmp_path}
    assert named in message(capsys, lambda: call(zo_replay, *(word.format(**places) for word in words)))
