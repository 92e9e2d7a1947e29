"""The command line on a tiny model: what a run writes, how it goes on, and what bad input is told."""

from __future__ import annotations

import csv
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from tests.command import TINY, Compose, bank, message, start, wait_for
from zo_lightning.cli import eval as zo_eval
from zo_lightning.cli import train as zo_train
from zo_lightning.cli.overrides import with_saved_overrides
from zo_lightning.cli.report import read_metrics, wilson_interval
from zo_lightning.cli.session import build


def test_a_run_leaves_results_a_curve_and_a_checkpoint(composed: Compose, tmp_path: Path, capsys):
    value = zo_train.run(composed())
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["steps"] == 6
    assert results["base_digest_unchanged"] is True
    assert results["num_parameters"] == 492_416
    for scores in (results["before"], results["after"]):
        assert scores["accuracy_low"] <= scores["accuracy"] <= scores["accuracy_high"]
    assert results["before"]["loss"] != results["after"]["loss"]
    assert results["seconds_per_step"] > 0 and results["tokens_per_second"] > 0
    assert (tmp_path / "run" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert bank(tmp_path / "run")["version"] == 6
    assert isinstance(value, float)
    assert "test accuracy" in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["cyclic", "merge"])
def test_the_base_is_scored_after_training_unless_that_writes_it(composed: Compose, tmp_path: Path, policy: str):
    few = ["bank.capacity=2", f"bank.policy={policy}", "direction.refresh_every=2", "optimized_metric=test/loss"]
    config = composed(*few, folder="alone")
    session = build(config, loggers=[])
    with session.engine():
        alone = session.test()
    learned = zo_train.run(composed(*few))
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert {f"test/{name}": results["before"][name] for name in ("loss", "accuracy")} == alone
    assert learned == results["after"]["loss"] != results["before"]["loss"]
    assert results["base_digest_unchanged"] is (policy == "cyclic")
    logged = read_metrics(tmp_path / "run")["test/loss"]
    assert [value for _, value in logged] == [results["before"]["loss"], results["after"]["loss"]]


def test_a_run_that_was_cut_logs_the_base_at_its_end(composed: Compose, tmp_path: Path):
    zo_train.run(composed("trainer.max_steps=4"))
    (tmp_path / "run" / "results.json").unlink()  # as one that never came to its end
    for steps in ([0, 6], [5]):
        zo_train.run(composed(f"ckpt_path={tmp_path / 'run'}"))
        newest = max((tmp_path / "run" / "csv").glob("*/metrics.csv"), key=lambda path: path.stat().st_mtime)
        with newest.open() as file:
            found = sorted(int(row["step"]) for row in csv.DictReader(file) if row["test/loss"])
        assert found == steps


def test_going_on_after_the_end_keeps_the_speed_and_says_so(composed: Compose, tmp_path: Path, caplog):
    caplog.set_level("INFO", "zo_lightning")
    zo_train.run(composed("trainer.max_steps=4"))
    first = json.loads((tmp_path / "run" / "results.json").read_text())
    zo_train.run(composed("trainer.max_steps=4", f"ckpt_path={tmp_path / 'run'}"))
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == first
    assert "going on from step 4" in caplog.text and "no step was left to train" in caplog.text


def test_all_parameters_are_trained_by_a_torch_backend_alone(composed: Compose, tmp_path: Path, capsys):
    zo_train.run(composed("backend=packed", "model.trainable=all"))
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["base_digest_unchanged"] is True and results["num_parameters"] == 492_416
    assert len(bank(tmp_path / "run")["matrices"]) > 3 * 7
    for backend in ("vllm", "fake"):
        told = message(
            capsys, lambda b=backend: zo_train.run(composed(f"backend={b}", "model.trainable=all", folder=b))
        )
        assert "`model.trainable=all`" in told and "`backend=packed`" in told


def test_a_folder_goes_on_in_place_as_if_unbroken(composed: Compose, tmp_path: Path):
    zo_train.run(composed(folder="whole"))
    zo_train.run(composed("trainer.max_steps=4", folder="parts"))
    zo_train.run(composed(f"ckpt_path={tmp_path / 'parts'}", folder="ignored"))
    whole, parts = bank(tmp_path / "whole"), bank(tmp_path / "parts")
    assert parts["version"] == 6
    assert torch.equal(whole["left"], parts["left"])
    assert not (tmp_path / "ignored" / "results.json").exists()


def test_the_last_checkpoint_is_the_end_of_the_run(composed: Compose, tmp_path: Path):
    """Seven steps, saved every two: the periodic checkpoint is of step 6."""
    zo_train.run(composed("trainer.max_steps=7", folder="whole"))
    assert bank(tmp_path / "whole")["version"] == 7
    zo_train.run(composed("trainer.max_steps=5", folder="parts"))
    zo_train.run(composed("trainer.max_steps=7", f"ckpt_path={tmp_path / 'parts'}"))
    assert torch.equal(bank(tmp_path / "whole")["left"], bank(tmp_path / "parts")["left"])


def test_a_run_that_goes_on_keeps_what_it_trains(composed: Compose, tmp_path: Path, capsys):
    zo_train.run(composed("trainer.max_steps=4"))
    kept = (tmp_path / "run" / "results.json").read_bytes()
    for change in ("seed=7", "data.batch_size=8", "task.num_test=16", "query.eps=1e-4"):
        config = composed(change, "trainer.max_steps=6", f"ckpt_path={tmp_path / 'run'}")
        said = message(capsys, lambda config=config: zo_train.run(config))
        assert change.split("=")[0] in said and "fork" in said
    assert (tmp_path / "run" / "results.json").read_bytes() == kept


def test_a_refused_run_changes_nothing_in_the_folder(composed: Compose, tmp_path: Path, capsys):
    zo_train.run(composed(), overrides=["seed=42"])
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
    (tmp_path / "other.ckpt").write_bytes(checkpoint.read_bytes())
    message(capsys, lambda: zo_train.run(composed("seed=7"), overrides=["seed=7"]))
    message(capsys, lambda: zo_train.run(composed(f"ckpt_path={tmp_path / 'other.ckpt'}")))
    checkpoint.unlink()  # as a run that ended before its first one
    message(capsys, lambda: zo_train.run(composed("seed=7"), overrides=["seed=7"]))
    checkpoint.write_bytes(before[checkpoint])
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_the_interval_is_of_the_examples_that_were_scored(composed: Compose, tmp_path: Path):
    zo_train.run(composed("trainer.limit_test_batches=1", "data.eval_batch_size=8", folder="few"))
    few = json.loads((tmp_path / "few" / "results.json").read_text())["after"]
    low, high = wilson_interval(few["accuracy"], 8)
    assert (few["accuracy_low"], few["accuracy_high"]) == pytest.approx((low, high))


def test_a_file_forks_and_leaves_the_old_run_alone(composed: Compose, tmp_path: Path):
    zo_train.run(composed("trainer.max_steps=4", folder="old"))
    before = (tmp_path / "old" / "checkpoints" / "last.ckpt").read_bytes()
    zo_train.run(composed(f"ckpt_path={tmp_path / 'old' / 'checkpoints' / 'last.ckpt'}", folder="new"))
    assert bank(tmp_path / "new")["version"] == 6
    assert (tmp_path / "old" / "checkpoints" / "last.ckpt").read_bytes() == before


def test_last_is_the_newest_run_of_the_same_configuration(composed: Compose, tmp_path: Path, capsys):
    zo_train.run(composed(folder="outputs/day/one"))
    zo_train.run(composed("update.lr=2e-4", folder="outputs/day/two"))
    zo_train.run(composed("ckpt_path=last"))
    assert not (tmp_path / "run" / "results.json").exists()
    assert "no run with this configuration" in message(
        capsys, lambda: zo_train.run(composed("ckpt_path=last", "update.lr=3e-4"))
    )


def test_a_folder_holds_one_run(composed: Compose, tmp_path: Path, capsys):
    zo_train.run(composed())
    assert "holds a run already" in message(capsys, lambda: zo_train.run(composed()))
    lock = FileLock(tmp_path / "run" / ".lock", thread_local=False)
    with ThreadPoolExecutor(1) as other:
        other.submit(lock.acquire).result()
        said = message(capsys, lambda: zo_train.run(composed(f"ckpt_path={tmp_path / 'run'}")))
        lock.release()
    assert "another run is writing" in said and "hydra.run.dir" in said


def test_eval_repeats_the_score_after_training(composed: Compose, tmp_path: Path, capsys):
    zo_train.run(composed())
    after = json.loads((tmp_path / "run" / "results.json").read_text())["after"]
    capsys.readouterr()
    (tmp_path / "eval").mkdir()
    zo_eval.run(composed(f"ckpt_path={tmp_path / 'run'}", folder="eval", name="eval"))
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["test"] == after


def test_eval_needs_a_checkpoint(composed: Compose, capsys):
    assert "`ckpt_path`" in message(capsys, lambda: zo_eval.run(composed(name="eval")))


def test_the_overrides_of_a_run_come_first(tmp_path: Path):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text("- model=tiny-llama\n- seed=7\n- ckpt_path=x\n")
    checkpoint = f"ckpt_path={tmp_path}/checkpoints/last.ckpt"
    assert with_saved_overrides(["seed=8", checkpoint]) == ["model=tiny-llama", "seed=8", checkpoint]
    assert with_saved_overrides(["--cfg", "job", checkpoint]) == [
        "--cfg",
        "job",
        "model=tiny-llama",
        "seed=7",
        checkpoint,
    ]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model.path=/nowhere"], ["model.path"]),
        (["trainer.precision=bf16-mixed"], ["trainer.precision", "backend.dtype"]),
        (["update.weight_decay=0.1"], ["update.weight_decay"]),
        (["update.lr=nan"], ["update.lr"]),
        (["query.eps=0"], ["query.eps"]),
        (["direction.rank=0"], ["direction.rank"]),
        (["direction.scale=2"], ["direction.scale"]),
        (["bank.capacity=3"], ["bank.capacity"]),
        (["bank.capacity=2", "bank.policy=refuse", "trainer.max_steps=60"], ["bank.capacity", "cyclic"]),
        (["backend=vllm", "bank.capacity=514"], ["bank.capacity", "512"]),
        (["backend=vllm", "backend.max_points=1"], ["backend.max_points"]),
        (["backend=vllm", "backend.process=thread"], ["backend.process"]),
        (["backend.dtype=foo"], ["backend.dtype"]),
        (["backend=vllm", "backend.dtype=foo"], ["backend.dtype"]),
        (["backend=vllm", "backend.max_length=10"], ["10", "task.truncate"]),
        (["backend=vllm", "+backend.engine.max_model_len=10"], ["model.max_length"]),
        (["backend=vllm", "backend.max_num_batched_tokens=0"], ["backend.max_num_batched_tokens", "at least 1"]),
        (["backend=vllm", "+backend.engine.max_num_seqs=0"], ["backend.engine.max_num_seqs", "at least 1"]),
        (["trainer.max_steps=null", "trainer.max_epochs=1", "scheduler=linear"], ["trainer.max_steps", "constant"]),
        (["scheduler=hold_then_decay", "scheduler.hold=1"], ["scheduler.hold"]),
        (["trainer.strategy=auto"], ["trainer.strategy"]),
        (["data.batch_size=0"], ["data.batch_size"]),
        (["task=sst2", "task.data_dir=/nowhere"], ["task.data_dir"]),
        (["ckpt_path=/nowhere.ckpt"], ["ckpt_path"]),
        (["backend._target_=os.system"], ["_target_"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_bad_input_names_its_key(composed: Compose, capsys, overrides: list[str], said: list[str]):
    if any(override.startswith("task=") for override in overrides):
        config = composed("model=tiny-llama", "backend=dense", *overrides, tiny=False)
    else:
        base = [o for o in TINY if o.split("=")[0] not in {override.split("=")[0] for override in overrides}]
        config = composed(*base, *overrides, tiny=False)
    printed = message(capsys, lambda: zo_train.run(config))
    for word in said:
        assert word in printed


def test_a_users_own_file_is_a_task(composed: Compose, tmp_path: Path):
    rows = [{"text": f"parcel number {i} came {'late' if i % 3 else 'early'}", "mood": i % 2} for i in range(40)]
    for name in ("mine", "test"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = composed(
        "model=tiny-llama",
        "backend=dense",
        "task=jsonl",
        "task.template='{{ text }}. I am'",
        "task.verbalisers={0: ' angry', 1: ' glad'}",
        "task.label_field=mood",
        f"task.train_file={tmp_path / 'mine.jsonl'}",
        f"task.test_file={tmp_path / 'test.jsonl'}",
        "task.num_dev=8",
        "trainer.max_steps=2",
        "trainer.val_check_interval=2",
        tiny=False,
    )
    zo_train.run(config)
    assert json.loads((tmp_path / "run" / "results.json").read_text())["steps"] == 2


def test_ctrl_c_leaves_a_checkpoint_and_exit_code_130(tmp_path: Path):
    endless = [o for o in TINY if not o.startswith(("trainer.max_steps", "callbacks"))] + ["trainer.max_steps=100000"]
    run = start(*endless, f"hydra.run.dir={tmp_path / 'run'}", cwd=tmp_path)
    metrics = tmp_path / "run" / "csv" / "version_0" / "metrics.csv"
    wait_for(lambda: metrics.is_file() and "train/loss" in metrics.read_text(), run)
    run.send_signal(signal.SIGINT)
    printed, _ = run.communicate(timeout=60)
    assert run.returncode == 130, printed
    assert "Traceback" not in printed
    assert bank(tmp_path / "run")["version"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_cut_while_the_base_is_scored_has_what_it_learned(tmp_path: Path, sent: signal.Signals, code: int):
    folder, tiny = tmp_path / "run", [o for o in TINY if not o.startswith("task.num_test")]
    run = start(*tiny, "task.num_test=400", "data.eval_batch_size=1", f"hydra.run.dir={folder}", cwd=tmp_path)
    log = folder / "train.log"
    wait_for(lambda: log.is_file() and "scoring the base" in log.read_text(), run)
    run.send_signal(sent)
    printed, _ = run.communicate(timeout=60)
    assert run.returncode == code and "Traceback" not in printed, printed
    assert bank(folder)["version"] == 6 and bank(folder)["slots"] and not (folder / "results.json").exists()
    again = start(f"ckpt_path={folder}", cwd=tmp_path)
    printed, _ = again.communicate(timeout=180)
    results = json.loads((folder / "results.json").read_text())
    assert again.returncode == 0 and results["steps"] == 6, printed
    assert results["before"]["loss"] != results["after"]["loss"]


def test_epochs_may_end_a_run(composed: Compose, tmp_path: Path):
    zo_train.run(composed("trainer.max_steps=null", "trainer.max_epochs=2"))
    assert json.loads((tmp_path / "run" / "results.json").read_text())["steps"] == 6  # 40 examples in batches of 16


@pytest.mark.slow
@pytest.mark.vllm
def test_a_killed_engine_ends_the_run_clearly_and_the_folder_goes_on(tmp_path: Path):
    tiny = [o for o in TINY if not o.startswith(("trainer.max_steps", "backend"))]
    child = [*tiny, "backend=vllm", "backend.process=child", f"hydra.run.dir={tmp_path / 'run'}"]
    run = start(*child, "trainer.max_steps=100000", cwd=tmp_path)
    checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
    wait_for(checkpoint.exists, run, seconds=200)
    for pid in engines_of(run.pid):
        os.kill(pid, signal.SIGKILL)
    printed, _ = run.communicate(timeout=60)
    assert run.returncode == 75, printed
    assert "engine died" in printed and "Traceback" not in printed
    done = bank(tmp_path / "run")["version"]
    again = start(
        f"ckpt_path={tmp_path / 'run'}", f"trainer.max_steps={done + 2}", "backend.process=inline", cwd=tmp_path
    )
    printed, _ = again.communicate(timeout=200)
    assert again.returncode == 0, printed
    assert bank(tmp_path / "run")["version"] == done + 2


def engines_of(pid: int) -> list[int]:
    """Child processes that run an engine, which name themselves so."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if "EngineCore" in Path(f"/proc/{child}/cmdline").read_text()]


def test_commands_without_a_folder_make_their_own(tmp_path: Path):
    """The README's first lines, as they are typed: no override of a folder."""
    tiny = [o for o in TINY if not o.startswith("trainer.max_steps")] + ["trainer.max_steps=2"]
    run = start(*tiny, cwd=tmp_path)
    printed, _ = run.communicate(timeout=180)
    assert run.returncode == 0, printed
    (folder,) = (path.parent for path in tmp_path.glob("outputs/*/*/results.json"))
    assert folder.name.endswith(f"-{run.pid}")

    sweep = start("-m", *tiny, "seed=1,2", cwd=tmp_path)
    printed, _ = sweep.communicate(timeout=180)
    assert sweep.returncode == 0, printed
    jobs = [path.parent for path in tmp_path.glob("multirun/*/*/*/results.json")]
    assert sorted(job.name for job in jobs) == ["0", "1"]
    assert len({json.loads((job / "run.json").read_text())["config_digest"] for job in jobs}) == 2

    score = start(f"ckpt_path={folder}", cwd=tmp_path, module="zo_lightning.cli.eval")
    printed, _ = score.communicate(timeout=180)
    assert score.returncode == 0, printed
    after = json.loads((folder / "results.json").read_text())["after"]
    assert json.loads(printed.splitlines()[-1])["test"] == after


def test_best_forks_from_the_best_checkpoint_of_the_newest_run(composed: Compose, tmp_path: Path, capsys):
    assert "best_checkpoint" in message(capsys, lambda: zo_train.run(composed("ckpt_path=best", folder="fork")))
    run = tmp_path / "outputs" / "day" / "run"
    zo_train.run(composed("callbacks=[default,best_checkpoint]", folder="outputs/day/run"))
    best = bank(run, "best")
    zo_train.run(composed("ckpt_path=best", f"trainer.max_steps={best['version'] + 1}", folder="fork"))
    assert bank(tmp_path / "fork")["version"] == best["version"] + 1
    assert bank(run)["version"] == 6


def test_options_of_ones_own_come_back_with_the_run(tmp_path: Path):
    (tmp_path / "mine" / "task").mkdir(parents=True)
    (tmp_path / "mine" / "task" / "reviews.yaml").write_text("defaults: [sentiment, _self_]\nname: reviews\n")
    deleted = "~callbacks.progress_bar"
    first = start("--config-dir", "mine", *TINY, "task=reviews", deleted, "hydra.run.dir=run", cwd=tmp_path)
    printed, _ = first.communicate(timeout=180)
    assert first.returncode == 0, printed
    for module in ("train", "eval"):
        again = start(f"ckpt_path={tmp_path / 'run'}", deleted, cwd=tmp_path, module=f"zo_lightning.cli.{module}")
        printed, _ = again.communicate(timeout=180)
        assert again.returncode == 0, printed


def test_what_has_no_value_or_is_no_checkpoint_is_told(composed: Compose, tmp_path: Path, capsys):
    files = [f"task.train_file={tmp_path / 'a'}", f"task.test_file={tmp_path / 'a'}"]
    unset = composed("task=jsonl", *files, tiny=False)
    assert "`task.template` has no value" in message(capsys, lambda: zo_train.run(unset))
    (tmp_path / "junk.ckpt").write_text("junk")
    junk = composed(f"ckpt_path={tmp_path / 'junk.ckpt'}", name="eval")
    assert "cannot be read as a checkpoint" in message(capsys, lambda: zo_eval.run(junk))
