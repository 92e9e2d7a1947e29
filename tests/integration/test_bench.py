"""What `zo-bench` prints and counts; nothing here asserts a time."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.backends import one_thread, prepared
from tests.command import composer, message, start
from zo_lightning.backends.packed import PackedBackend
from zo_lightning.bench import bank, state
from zo_lightning.bench.candidates import copa_rows, record_rows
from zo_lightning.bench.counting import ByteCounter
from zo_lightning.bench.floor import Floor, analytic_overhead, head_shape
from zo_lightning.bench.holders import OnCpu, OnGpu
from zo_lightning.bench.released import InPlaceWeights, ReleasedLozo, ReleasedWeights
from zo_lightning.bench.rows import Load, request_rows
from zo_lightning.bench.stages import LowRankPerturbation
from zo_lightning.bench.startup import PHASES
from zo_lightning.cli import bench, startup
from zo_lightning.core.method import Method
from zo_lightning.core.types import BankSpec, Example, Score, Workload
from zo_lightning.directions import LowRank
from zo_lightning.estimators import Spsa
from zo_lightning.models import load_model, trainable_layout
from zo_lightning.queries import Antithetic
from zo_lightning.updates import Sgd

TINY = ["model=tiny-llama", "backend=packed", "task.num_train=20", "task.num_dev=8", "task.num_test=8"]
SHORT = ["rounds=1", "warm_up=0", "data.batch_size=4"]
NU, RANK = 50, 2
SETTINGS: dict[str, Any] = {"rank": RANK, "refresh_every": NU, "eps": 1e-3, "lr": 1e-6}
METHOD = Method(
    direction=LowRank(rank=RANK, refresh_every=NU, cycle=3),
    query=Antithetic(eps=1e-3),
    estimator=Spsa(),
    update=Sgd(lr=1e-6),
)
Facts = dict[str, Any]


@pytest.fixture
def measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Facts]:
    """Runs a subcommand on the tiny model and returns its JSON, which stands in the run's folder too."""
    compose = composer(tmp_path, [*TINY, *SHORT])

    def measure(command: str, *overrides: str) -> Facts:
        config = compose(f"command={command}", *overrides, name="bench")
        with one_thread():
            bench.run(config, overrides=[*TINY, *SHORT, f"command={command}"])
        facts: Facts = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert json.loads((tmp_path / "run" / f"{command}.json").read_text()) == facts
        assert (tmp_path / "run" / f"{command}.png").stat().st_size > 5000
        return facts

    return measure


def test_without_a_subcommand_it_lists_them(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for words, says in (
        ([], "a subcommand is missing"),
        (["stap", "rounds=2"], "no subcommand `stap`"),
        (["stepp", "--help"], "no subcommand `stepp`"),
    ):
        monkeypatch.setattr(sys, "argv", ["zo-bench", *words])
        printed = message(capsys, bench.main)
        assert says in printed and all(f"\n  {name} " in printed for name in bench.SUBCOMMANDS)
    monkeypatch.setattr(sys, "argv", ["zo-bench", "--help"])
    with pytest.raises(SystemExit) as stop:
        bench.main()
    assert not stop.value.code and "Usage: zo-bench SUBCOMMAND" in capsys.readouterr().out


def test_rounds_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = composer(tmp_path, TINY)("command=step", "rounds=0", name="bench")
    assert "`rounds`=0 must be at least 1" in message(capsys, lambda: bench.run(config))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["bank", "ranks=[7]"], "a positive multiple of `direction.rank`=2"),
        (["bank", "ranks=[1024]", "backend=vllm"], "at most 512"),
        (["bank", "points=[3]"], "choose multiples of 2"),
        (["bank", "ranks=[]", "points=[]"], "nothing to compare"),
        (["chain", "model.trainable=all"], "leave `model.trainable=linear`"),
        (["chain", "backend=fake"], "choose `backend=vllm`"),
        (["startup", "starts=0"], "`starts`=0 must be at least 1"),
        (["traffic", "bank.capacity=600"], "lower `bank.capacity`=600"),
        (["padding", "data.batch_size=0"], "`data.batch_size` must be at least 1"),
        (["padding", "data_dir=missing"], "`data_dir`=missing is not a folder"),
        (["step", "without=[dens]"], "`without` has dens"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_measured_is_refused(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = composer(tmp_path, TINY)(f"command={words[0]}", *words[1:], name="bench")
    assert says in message(capsys, lambda: bench.run(config))


def test_step_reports_every_ratio_with_its_interval(measure: Callable[..., Facts]):
    facts = measure("step", "rounds=2")
    for name in ("step_over_matched", "dense_over_step", "step_over_floor", "packed_over_step", "dense_over_floor"):
        low, high = facts[f"{name}_interval"]
        assert 0 < low <= facts[name] <= high
    assert facts["tokens"] < facts["dense_tokens"] and facts["rounds"] == 2
    assert set(facts["host_seconds"]) == {"plan", "programming", "estimate", "commit"}
    assert all(facts["host_seconds"].values()) and 0 < facts["host_share"] < 1
    assert facts["analytic_overhead"] == pytest.approx(RANK * 6144 / 442368)


def test_the_floor_is_the_same_whatever_is_trained():
    folder, device = prepared("tiny-llama").folder, torch.device("cpu")
    linear, everything = (trainable_layout(folder, kind) for kind in ("linear", "all"))
    load = Load(tokens=10, scored=3)
    floors = [Floor(layout, dtype="float32", device=device).flops(load) for layout in (linear, everything)]
    assert floors[0] == floors[1] == 2 * (10 * 442368 + 3 * math.prod(head_shape(folder)))
    assert analytic_overhead(linear, RANK) == analytic_overhead(everything, RANK)


def test_step_leaves_cases_out(measure: Callable[..., Facts]):
    facts = measure("step", "without=[dense,packed]")
    assert set(facts["seconds"]) == {"step", "matched", "floor"}


def test_step_needs_inference_to_compare_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = composer(tmp_path, TINY)("command=step", "backend=dense", name="bench")
    assert "choose `backend=vllm`" in message(capsys, lambda: bench.run(config))


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM, which has no wheel for this machine")
def test_step_on_vllm(tmp_path: Path):
    """In a process of its own, as every engine that is not the tests' shared one."""
    words = ["step", *TINY, *SHORT, "backend=vllm", "hydra.run.dir=here"]
    printed, _ = start(*words, cwd=tmp_path, module="zo_lightning.cli.bench").communicate(timeout=250)
    facts = json.loads(printed.splitlines()[-1])
    assert {"step", "matched", "dense", "packed"} < set(facts["seconds"])
    assert facts["host_seconds"]["programming"] > 0 and 0 < facts["host_share"] < 1


def test_chain_has_every_stage_with_time_and_bytes(measure: Callable[..., Facts]):
    facts = measure("chain", "without=[packed]")
    stages = ["dense", "low_rank", "deferred", "requests", "ragged"]
    assert list(facts["seconds"]) == stages
    gigabytes = [facts["gb"][stage] for stage in stages]
    assert gigabytes[:4] == sorted(gigabytes[:4], reverse=True)
    assert gigabytes[4] < gigabytes[1]  # a CPU's working copy of the weights is more than a merge in place


def test_engines_get_the_limits_of_training_and_of_more_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What `evaluate` is asked in training, or at the most points that are compared."""
    asked: list[tuple[Workload, ...]] = []

    def note(self: PackedBackend, *parts: Any) -> None:
        asked.append(parts[-1])
        plain(self, *parts)

    plain = PackedBackend.open
    monkeypatch.setattr(PackedBackend, "open", note)
    compose = composer(tmp_path, [*TINY, *SHORT])
    made = bench.workbench(compose("command=bank", "ranks=[8]", "points=[2,6]", name="bench"))
    with one_thread():
        bank.run(made)
    train, evaluation = asked[0]
    assert (train.num_points, train.batch_size, len(train.examples)) == (2, 4, 20)
    assert len(evaluation.examples) == 16
    assert asked[1] == (replace(train, num_points=6), evaluation)


def test_bank_compares_columns_and_points(measure: Callable[..., Facts]):
    facts = measure("bank", "ranks=[8,64]", "points=[2,30]")
    assert list(facts["step_over_matched_by_columns"]) == ["8", "64"]
    assert facts["rank_64_over_8"] > 0 and facts["points_30_over_2_per_point"] > 0
    assert list(facts["milliseconds_per_point_interval"]) == ["2", "30"]


def test_bank_may_compare_one_side_alone(measure: Callable[..., Facts]):
    facts = measure("bank", "ranks=[]", "points=[2]")
    assert not facts["step_over_matched_by_columns"] and set(facts["milliseconds_per_point"]) == {"2"}


def test_journal_reports_its_share_in_each_mode(measure: Callable[..., Facts], tmp_path: Path, monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    found = measure("journal", "rounds=4")
    for mode in ("none", "overlapped", "sync"):
        assert 0 < found[mode]["journal_over_step"] < 1
        assert found[mode]["bytes"] == 512 + 64 * 4 + 64  # header, steps, end
    assert not list(tmp_path.glob(".journal*"))


def test_padding_finds_the_tasks_whose_data_are_at_hand(measure: Callable[..., Facts], tmp_path: Path):
    rows = [{"sentence": "good " * (1 + i % 7), "label": i % 2} for i in range(600)]
    for split in ("train", "validation"):
        (tmp_path / f"sst2_{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, made in (("copa", copa_rows(520, seed=0)), ("record", record_rows(520, seed=0, length=60))):
        for split in ("train", "validation"):
            (tmp_path / f"{name}_{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    facts = measure("padding", f"data_dir={tmp_path}")
    assert set(facts["tasks"]) == {"sentiment", "sst2", "copa", "record"}
    assert all(0 < share["candidates"] < 1 < share["work"] for share in facts["tasks"].values())


def test_a_request_goes_down_the_trie_where_tokens_can_be_forced(monkeypatch: pytest.MonkeyPatch):
    example = Example(prompt=(7,), options=((1, 2, 5), (1, 3), (4, 6)), label=0)
    for on_gpu, rows in ((False, [(7, 1, 2), (7, 4)]), (True, [(7,), (7, 1), (7, 4), (7, 1, 2)])):
        monkeypatch.setattr(torch.cuda, "is_available", lambda on_gpu=on_gpu: on_gpu)
        assert request_rows([example]) == rows


def test_startup_times_every_phase_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    ends = startup.phases([*TINY, *SHORT, "command=startup"])
    assert list(ends) == list(PHASES)
    assert not list(tmp_path.iterdir())  # nothing is left behind
    assert list(ends.values()) == sorted(ends.values())


@pytest.mark.slow
def test_startup_starts_fresh_processes(tmp_path: Path):
    """With the options of a folder of one's own; they end as they should, without a word of leaks."""
    (tmp_path / "mine" / "task").mkdir(parents=True)
    (tmp_path / "mine" / "task" / "short.yaml").write_text("defaults: [sentiment]\nnum_train: 12\n")
    words = ["startup", "--config-dir", "mine", *TINY[:2], *SHORT, "task=short", "starts=1", "hydra.run.dir=here"]
    printed, _ = start(*words, cwd=tmp_path, module="zo_lightning.cli.bench").communicate(timeout=250)
    facts = json.loads(printed.splitlines()[-1])  # the last line, though both streams are one here
    assert facts["whole"] == pytest.approx(sum(facts["seconds"].values()))


def test_traffic_of_qwen3_14b_comes_out_as_published(measure: Callable[..., Facts]):
    """37 and 13 passes over 14.8 billion parameters of two bytes, by running the operations, from the config alone."""
    facts = measure("traffic", "model=qwen3-14b", "backend=vllm")
    assert facts["weights_gb"] == pytest.approx(2 * 14.768, rel=1e-3)
    assert facts["gb"]["dense"] == pytest.approx(1092.9, rel=0.01)
    assert facts["gb"]["low_rank"] == pytest.approx(384.0, rel=0.01)
    assert facts["passes"]["dense"] == pytest.approx(37, rel=1e-3)
    assert facts["passes"]["low_rank"] == pytest.approx(13, rel=1e-3)
    assert facts["gb"]["merged"] == pytest.approx(4.98, rel=0.01)
    assert facts["gb"]["read_only"] == pytest.approx(1.775, rel=0.01)
    assert facts["where"]["read_only"]["draws: the generator's integers"] == pytest.approx(1.33, rel=0.01)
    assert facts["cpu_dtype"] == "float32" and max(facts["passes"][f"cpu_{n}"] for n in ("merged", "read_only")) < 0.2
    for name, total in facts["gb"].items():
        assert sum(facts["where"][name].values()) == pytest.approx(total)


def test_traffic_takes_a_folder_with_a_config_alone(measure: Callable[..., Facts], tmp_path: Path):
    (tmp_path / "config.json").write_text((prepared("tiny-llama").folder / "config.json").read_text())
    assert measure("traffic", f"model.path={tmp_path}")["gb"] == measure("traffic")["gb"]


def is_state(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.ndim > 0


def memory(tensors: list[torch.Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


class Moved(TorchDispatchMode):
    """Bytes of all tensors that operations read and write, but for results that share memory with an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        overwritten = name in ("copy_", "fill_", "zero_")
        inputs = {key: value for key, value in (kwargs or {}).items() if key != "out"}
        read = [leaf for leaf in tree_leaves((args[overwritten:], inputs)) if is_state(leaf)]
        written = [leaf for leaf in tree_leaves(result) if is_state(leaf)]
        in_place = func._schema.is_mutable
        shared = memory(read) & memory(written)
        if name == "index":  # of what is picked from, as much as is picked
            read[:1] = written
        if written and (in_place or not shared) and name not in ("empty", "new_empty", "zeros"):
            self.total += sum(leaf.nbytes for leaf in [*read, *written])
        return result


def test_the_counters_of_the_dense_step_equal_the_bytes_that_are_moved(monkeypatch: pytest.MonkeyPatch):
    model = prepared("tiny-llama")
    trainer = released(ReleasedLozo)
    monkeypatch.setattr(trainer, "loss", lambda examples: 0.0)  # the forward pass is not parameter state
    assert stage_average(lambda number: trainer.step([], number)) == pytest.approx(counted(model.folder)["dense"])


def test_the_counters_of_the_low_rank_step_equal_the_bytes_that_are_moved(monkeypatch: pytest.MonkeyPatch):
    model = prepared("tiny-llama")
    parameters, _ = state.meta_model(model.folder, "float32")
    weights = ReleasedWeights({name: torch.zeros(p.shape) for name, p in parameters.items()}, **SETTINGS)

    def step(number: int) -> None:
        weights.begin(number, seed=number)
        weights.factors()
        weights.update(1.0)

    moved = state.per_step(state.low_rank_step(parameters, points=METHOD.query.max_points, **SETTINGS), NU)
    read = moved["factors", "read"]  # by the forward passes: every left and right factor, once a point
    factors = sum(sum(p.shape) for p in parameters.values() if p.ndim == 2)
    assert read == pytest.approx(2 * RANK * 4 * factors)
    assert stage_average(step) == pytest.approx(sum(moved.values()) - read)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("policy", ["cyclic", "merge"])
def test_the_counters_of_our_step_equal_the_bytes_that_are_moved(policy: Any, dtype: torch.dtype):
    """The bank's probes, commits and merges and the engine's adapters, on real tensors; a GPU draws otherwise."""
    parameters, layout = state.meta_model(prepared("tiny-llama").folder, str(dtype).removeprefix("torch."))
    real = {name: torch.zeros(p.shape, dtype=dtype) for name, p in parameters.items()}
    spec = BankSpec(rank=RANK, capacity=RANK if policy == "merge" else 3 * RANK, policy=policy)
    moved = state.per_step(state.OurStep(METHOD, parameters, layout, spec, OnGpu), NU)
    step = state.OurStep(METHOD, real, layout, spec, OnGpu)
    expected = sum(size for (section, _), size in moved.items() if section not in ("forward", "draws"))
    assert stage_average(lambda number: step(ByteCounter(), number)) == pytest.approx(expected)
    adapters = 2 * 8 * (layout.num_rows + layout.num_cols) * dtype.itemsize  # two points, eight columns
    assert moved["forward", "read"] == pytest.approx(adapters)
    assert any(section == "merge" for section, _ in moved) == (policy == "merge")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("policy", ["cyclic", "merge"])
def test_the_counters_of_our_step_on_a_cpu_equal_the_bytes_that_are_moved(policy: Any, dtype: torch.dtype):
    """Programming the open slots, and the working copy that a stage of a float32 run begins with."""
    parameters, layout = state.meta_model(prepared("tiny-llama").folder, str(dtype).removeprefix("torch."))
    real = {name: torch.zeros(p.shape, dtype=dtype) for name, p in parameters.items()}
    spec = BankSpec(rank=RANK, capacity=RANK if policy == "merge" else 3 * RANK, policy=policy)
    moved = state.per_step(state.OurStep(METHOD, parameters, layout, spec, OnCpu), NU)
    step = state.OurStep(METHOD, real, layout, spec, OnCpu)
    expected = sum(size for (section, _), size in moved.items() if section != "forward")
    assert stage_average(lambda number: step(ByteCounter(), number)) == pytest.approx(expected)
    folded = dtype == torch.float32 and policy == "cyclic"
    columns = RANK if folded or policy == "merge" else 3 * RANK  # that stay factors
    assert moved["forward", "read"] == pytest.approx(2 * columns * 4 * (layout.num_rows + layout.num_cols))
    copies = sum(size for (section, _), size in moved.items() if section == "working copy")
    weights = sum(matrix.rows * matrix.cols for matrix in layout.matrices)
    assert copies == pytest.approx(folded * 24 * weights / NU, rel=0.1)  # copied, added to, packed


def counted(folder: Path) -> dict[str, float]:
    parameters, layout = state.meta_model(folder, "float32")
    found = state.count(METHOD, parameters, layout, BankSpec(rank=RANK, capacity=6))
    return {name: sum(moved.values()) for name, moved in found.items()}


def stage_average(step: Callable[[int], object]) -> float:
    """Bytes of a step, over a stage that is not the first: its first step, and one of the others."""
    totals = []
    for number in (NU, NU + 1):
        with torch.no_grad(), Moved() as moved:
            step(number)
        totals.append(moved.total)
    return (totals[0] + (NU - 1) * totals[1]) / NU


def released(kind: type[ReleasedLozo], **changes: Any) -> Any:
    model = prepared("tiny-llama")
    loaded = load_model(model.folder, dtype="float32", device=torch.device("cpu"))
    return kind(loaded, objective=Score(), **SETTINGS, **changes)


def test_the_dense_path_learns_as_lozo_does_whichever_way_it_writes(small_batch):
    """The same losses and weights with one write or four operations, and from factors in the forward pass."""
    layout = prepared("tiny-llama").layout
    only = [matrix.parameter for matrix in layout.matrices]
    plain, in_place = released(ReleasedLozo, only=only), released(ReleasedLozo, only=only, weights=InPlaceWeights)
    factored = released(LowRankPerturbation, only=only)
    for number in (0, 1):
        found = [trainer.step(small_batch, number) for trainer in (plain, in_place, factored)]
        assert found[1] == pytest.approx(found[0], rel=0.02) and found[2] == pytest.approx(found[0], rel=0.02)
        assert found[0] != 0


@pytest.fixture
def small_batch():
    from tests.examples import mixed_examples

    return mixed_examples(prepared("tiny-llama").folder)
