"""``experiment=adamw_drill`` from the command line: killed, it goes on from its folder to the bits of the unbroken."""

from __future__ import annotations

import json
import logging
import shutil
import signal

import pytest
import torch

from tests.backends import one_thread
from tests.command import composer, message, start, wait_for
from zo_lightning.checkpoint.store import StoreError
from zo_lightning.cli import drain_tax
from zo_lightning.cli.first_order import newest
from zo_lightning.cli.supervise import supervise
from zo_lightning.cli.train import run
from zo_lightning.errors import ConfigError

DRILL = [
    "experiment=adamw_drill",
    "data.batch_size=2",
    "trainer.max_steps=60",
    "trainer.val_check_interval=null",
    "task.num_train=40",
    "task.num_dev=4",
    "task.num_test=8",
    "checkpoint.drain.num_shards=4",
    "logger=none",
]


def test_a_killed_drill_goes_on_from_its_folder(tmp_path):
    composed = composer(tmp_path, DRILL)
    killed = tmp_path / "killed"
    process = start(*DRILL, f"paths.root={tmp_path}", f"hydra.run.dir={killed}", cwd=tmp_path)
    wait_for(lambda: any(killed.glob("checkpoints/store/manifests/step-*")), process)
    process.kill()
    process.communicate()
    assert not (killed / "checkpoints" / "last.ckpt").exists(), "the run ended before it was killed"
    with one_thread():
        run(composed(f"ckpt_path={killed}"))
        run(composed(f"ckpt_path={killed}"))  # no step is left
        run(composed(folder="unbroken"))
    ends = [
        torch.load(tmp_path / name / "checkpoints" / "last.ckpt", weights_only=True) for name in ("killed", "unbroken")
    ]
    assert [end["global_step"] for end in ends] == [60, 60]
    states = [{**end["state_dict"], **flat(end["optimizer_states"][0]["state"])} for end in ends]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    kept = json.loads((killed / "results.json").read_text())["checkpoint"]
    assert kept["refused"] == kept["failures"] == 0


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of a run that came to its end."""
    root = tmp_path_factory.mktemp("ended")
    with one_thread():
        run(composer(root, DRILL)("trainer.max_steps=20"))
    return root


def test_a_run_at_its_end_keeps_its_results(ended):
    file = ended / "run" / "results.json"
    first = json.loads(file.read_text())
    assert first["before"] and first["seconds_per_step"] and first["checkpoint"]["saves"]
    with one_thread():
        run(composer(ended, DRILL)("trainer.max_steps=20", f"ckpt_path={ended / 'run'}"))
    assert json.loads(file.read_text()) == first


def test_what_is_torn_is_passed_over(ended, tmp_path, caplog):
    checkpoints = tmp_path / "checkpoints"
    shutil.copytree(ended / "run" / "checkpoints", checkpoints)
    store, last = checkpoints / "store", checkpoints / "last.ckpt"
    assert newest(store) == last and not [record for record in caplog.records if record.levelno >= logging.WARNING]
    whole = last.read_bytes()
    last.write_bytes(whole[: len(whole) // 2])
    assert newest(store) == store / "restored.ckpt" and "last.ckpt is cut off" in caplog.text
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    last.write_bytes(flipped)
    assert newest(store) == store / "restored.ckpt" and "last.ckpt is damaged at" in caplog.text
    for manifest in store.glob("manifests/step-*"):
        manifest.write_bytes(b"")
    with pytest.raises(StoreError, match=r"no checkpoint that can be restored.*last.ckpt is damaged"):
        newest(store)
    last.write_bytes(whole)
    caplog.clear()
    assert newest(store) == last and "no checkpoint that can be restored" in caplog.text


def test_a_run_without_an_engine_meets_its_failures(tmp_path):
    words = [*DRILL, "trainer.max_steps=10", f"paths.root={tmp_path}", f"hydra.run.dir={tmp_path / 'run'}"]
    process = start(*words, "failure=kill", "failure.kill.step=3", cwd=tmp_path)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert '"kill"' in (tmp_path / "run" / "failures.jsonl").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["failure=nan_loss"], "`failure=nan_loss` strikes at an engine"),
        (["failure=engine_death"], "`failure=engine_death` strikes at an engine"),
        (["failure=disk_full"], "`failure=disk_full` strikes at what this process writes"),
        (["failure=kill", "failure.kill.byte=9"], "`failure.kill.byte` strikes at what this process writes"),
    ],
)
def test_failures_of_what_is_not_there_are_refused(words, says, tmp_path, capsys):
    assert says in message(capsys, lambda: run(composer(tmp_path, DRILL)(*words)))


def test_there_is_no_spare_without_an_engine(tmp_path):
    with pytest.raises(ConfigError, match=r"`supervise.spare` keeps an engine warm.*training=adamw"):
        supervise(composer(tmp_path, DRILL)("supervise.spare=true"), [])


def test_the_tax_is_measured_on_blocks_with_and_without_the_drain(tmp_path):
    config = composer(tmp_path, DRILL)("checkpoint.drain.num_shards=2", "+pairs=2")
    with one_thread():
        found = drain_tax.measured(config, str(tmp_path))
    low, high = found["step_with_over_without_interval"]
    assert 0 < low <= found["step_with_over_without"] <= high and found["snapshots"] > 0
    assert found["callback_over_step"] > 0 and found["gradient_bytes_per_drained_step"] > 0


def flat(state):
    return {f"{index} {name}": value for index, values in state.items() for name, value in values.items()}
