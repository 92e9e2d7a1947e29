"""``experiment=adamw_drill`` from the command line: killed, it goes on from its folder to the bits of the unbroken."""

from __future__ import annotations

import json

import torch

from tests.backends import one_thread
from tests.command import composer, start, wait_for
from zo_lightning.cli.train import run

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


def flat(state):
    return {f"{index} {name}": value for index, values in state.items() for name, value in values.items()}
