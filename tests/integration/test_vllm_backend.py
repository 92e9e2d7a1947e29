"""What only real vLLM can show: adapters that stay, a base without them, private names, precision, a dying engine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.backends import EPS, RANK, SEED, Opened, Row, directions, key_of, model_of, on_rows, oracle_of
from tests.lozo import Lozo
from zo_lightning.backends.vllm import VllmBackend, cpu_lora
from zo_lightning.backends.vllm.scoring import trie_nodes
from zo_lightning.core.types import BankSpec
from zo_lightning.errors import ConfigError, EngineError
from zo_lightning.updates import Sgd

LOZO = Lozo(direction=directions(refresh_every=10), eps=EPS, lr=1e-4, seed=SEED)


@pytest.fixture
def internals() -> Any:
    """The module of private names, which imports vLLM's platform only when it is used."""
    pytest.importorskip("vllm", reason="needs vLLM, which has no wheel for this machine")
    from zo_lightning.backends.vllm import internals

    return internals


def worker_of(subject: Opened) -> Any:
    """The worker of an inline engine."""
    (worker,) = subject.backend._llm.collective_rpc(lambda worker: worker.worker)
    return worker


def layers_of(subject: Opened) -> dict[str, Any]:
    """vLLM's adapter layers by name."""
    return worker_of(subject).model_runner.lora_manager._adapter_manager.modules


def train(subject: Opened, steps: int) -> None:
    LOZO.run(subject.backend, [subject.examples[:4]] * steps)


# --- adapters and the base


@on_rows(Row("vllm"))
def test_no_adapter_is_ever_reset_or_loaded_again(subject: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 30 steps with two changes of stage, and evaluations of base and centre between them."""
    calls: Counter[str] = Counter()
    for layer in layers_of(subject).values():
        for name in ("reset_lora", "set_lora"):
            monkeypatch.setattr(layer, name, lambda *args, name=name: calls.update([name]))
    for _ in range(3):
        train(subject.reset(), 30)
        subject.backend.infer(subject.examples)
        subject.ask()
    assert subject.backend.snapshot()["slots"] == [[SEED, 0], [SEED, 1], [SEED, 2]]
    assert calls == {}
    manager = worker_of(subject).model_runner.lora_manager._adapter_manager
    assert sorted(manager.list_adapters()) == [1, 2]


@on_rows(Row("vllm"))
def test_requests_without_an_adapter_skip_its_path(subject: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run of tokens, hence no product; with an adapter two products a layer for each of its runs."""
    train(subject, 12)
    runs: list[list[Any]] = []
    products = Counter()  # type: ignore[var-annotated]
    token_runs, addmm = cpu_lora.token_runs, torch.Tensor.addmm_

    def count_runs(wrapper: Any) -> list[tuple[int, int, int]]:
        runs.append(token_runs(wrapper))
        return runs[-1]

    def count_products(*args: Any) -> torch.Tensor:
        products["addmm_"] += 1
        return addmm(*args)

    monkeypatch.setattr(cpu_lora, "token_runs", count_runs)
    monkeypatch.setattr(torch.Tensor, "addmm_", count_products)
    subject.backend.infer(subject.examples[:1])
    assert runs == [[]] and products["addmm_"] == 0
    subject.ask(examples=subject.examples[:1])
    assert [len(of_batch) for of_batch in runs] == [0, 1] and products["addmm_"] == len(layers_of(subject))


@on_rows(Row("vllm"))
def test_the_base_answers_as_an_engine_without_adapters_bit_by_bit(subject: Opened) -> None:
    """Before and after 30 steps: log-probabilities of the bare model, from an engine that knows of no adapter."""
    from vllm import LLM, SamplingParams

    before = subject.backend.infer(subject.examples)
    train(subject, 30)
    assert subject.backend.infer(subject.examples) == before
    subject.backend.close()
    try:
        bare = LLM(
            model=subject.layout.model,
            dtype="float32",
            max_model_len=256,
            block_size=32,
            enforce_eager=True,
            skip_tokenizer_init=True,
        )
        try:
            nodes = [node for example in subject.examples for node in trie_nodes(example)]
            outputs = bare.generate(
                [{"prompt_token_ids": list(node.prompt)} for node in nodes],
                [SamplingParams(max_tokens=1, logprob_token_ids=list(n.children), detokenize=False) for n in nodes],
                use_tqdm=False,
            )
        finally:
            bare.llm_engine.engine_core.shutdown()
    finally:
        subject.open()
    found = [
        {token: output.outputs[0].logprobs[0][token].logprob for token in node.children}
        for node, output in zip(nodes, outputs, strict=True)
    ]
    expected = [
        answers[node.prompt]
        for example, answers in zip(subject.examples, before, strict=True)
        for node in trie_nodes(example)
    ]
    assert found == expected


# --- the digest


@on_rows(Row("vllm"))
def test_the_digest_sees_every_weight(subject: Opened) -> None:
    """One changed bit anywhere changes it, and it goes back with the bit."""
    before = subject.backend.digest()
    model = worker_of(subject).model_runner.get_model()
    names = [name for name, _ in model.named_parameters()]
    assert (
        sum("qkv_proj" in name or "gate_up_proj" in name for name in names) == 6
    )  # linears are there, not packed away
    for name, parameter in model.named_parameters():
        bits = parameter.data.flatten()[-1:].view(torch.int32)
        bits ^= 1
        assert subject.backend.digest().hex != before.hex, name
        bits ^= 1
    assert subject.backend.digest() == before


@on_rows(Row("vllm"))
def test_a_digest_that_covers_another_number_of_weights_is_an_error(
    subject: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = subject.layout.num_parameters
    monkeypatch.setattr(subject.backend, "_layout", replace(subject.layout, num_parameters=count + 1))
    with pytest.raises(EngineError, match=f"shows {count} parameters, the model has {count + 1}"):
        subject.backend.digest()


# --- private names


MODULES = {
    "dispatch_cpu_unquantized_gemm": "vllm.model_executor.layers.utils",
    "batched_count_greater_than": "vllm.v1.sample.sampler",
    "PunicaWrapperCPU": "vllm.lora.punica_wrapper.punica_cpu",
}


@pytest.mark.vllm
@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_lacks_a_name_is_another_version(internals: Any, monkeypatch, name: str) -> None:
    import importlib

    monkeypatch.delattr(importlib.import_module(MODULES[name]), name)
    with pytest.raises(EngineError, match=rf"has no .*{name}; zo-lightning supports vLLM 0\.32"):
        internals.install_cpu_replacements()


@pytest.mark.vllm
@pytest.mark.parametrize("name", ["update_metadata", "prefill_metadata"])
def test_adapter_metadata_that_lacks_a_name_is_another_version(internals: Any, monkeypatch, name: str) -> None:
    from vllm.lora.punica_wrapper import punica_cpu

    there = {other: None for other in ("update_metadata", "prefill_metadata") if other != name}
    monkeypatch.setattr(punica_cpu, "PunicaWrapperCPU", type("PunicaWrapperCPU", (), there))
    with pytest.raises(EngineError, match=rf"PunicaWrapperCPU\.{name}; .*0\.32"):
        internals.install_cpu_replacements()


LAYER = ("_apply_lora_to_output", "lora_a_stacked", "lora_b_stacked", "punica_wrapper", "base_layer")
MANAGER = ("create_dummy_lora", "add_adapter", "pin_adapter", "lora_index_to_id", "packed_modules_mapping", "modules")


@pytest.mark.vllm
@pytest.mark.parametrize("missing", ["model_runner", "lora_manager", "_adapter_manager", *MANAGER, *LAYER])
def test_a_worker_that_lacks_a_name_is_another_version(internals: Any, missing: str) -> None:
    def has(names: tuple[str, ...], **more: Any) -> SimpleNamespace:
        return SimpleNamespace(**{name: more.get(name, ()) for name in names if name != missing})

    factors, base = (torch.zeros(1, 1, 2, 2),), SimpleNamespace(weight=torch.zeros(2, 2))
    layer = has(LAYER, lora_a_stacked=factors, lora_b_stacked=factors, base_layer=base)
    modules = {"model.layers.0.self_attn.o_proj": layer}
    manager = has(MANAGER, packed_modules_mapping={}, modules=modules)
    runner = has(("lora_manager",), lora_manager=has(("_adapter_manager",), _adapter_manager=manager))
    worker = has(("model_runner",), model_runner=runner)
    with pytest.raises(EngineError, match=rf"{missing}; zo-lightning supports vLLM 0\.32"):
        for use in (internals.adapter_slices, lambda w: internals.register_adapters(w, 0), internals.pack_cpu_adapters):
            use(worker)


@on_rows(Row("vllm"))
def test_an_engine_of_another_version_is_shut_down_again(
    subject: Opened, internals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject.backend.close()
    try:
        with monkeypatch.context() as other_version:
            other_version.setattr(internals, "adapter_slices", lambda worker: {})
            with pytest.raises(EngineError, match=r"has no adapter for model\.layers\.0.*supports vLLM 0\.32"):
                subject.open()
        assert not subject.backend.is_open
    finally:
        subject.open()
    assert len(subject.ask().losses) == len(subject.examples)


# --- half precision


@on_rows(Row("vllm", dtype="bfloat16"))
def test_half_precision_probes_have_their_own_columns(subject: Opened) -> None:
    """[P | eps U] against [V | V]: P is what it is alone, however small, under both probes."""
    subject.train(4)  # two stages
    tiny = subject.backend.snapshot()
    tiny["left"] = tiny["left"] * 1e-4  # far below eps * U
    subject.backend.load(tiny)
    key = key_of(4)
    subject.backend.evaluate([subject.request((key, a)) for a in (EPS, -EPS)])
    factors = worker_of(subject).zo_factors
    bank = factors.bank
    drawn = directions(refresh_every=3).left(key, subject.layout, torch.device("cpu"))
    in_use, probe = bank.num_columns, slice(bank.num_columns, bank.num_columns + RANK)
    assert in_use == 2 * RANK and float(bank.left_OC.abs().max()) < EPS
    for adapter, sign in enumerate((1.0, -1.0)):
        slot = factors._slots[adapter]
        for (right, left, _), rows, cols in zip(factors._slices, bank.row_spans, bank.col_spans, strict=True):
            assert torch.equal(left[slot, 0, :, :in_use], bank.left_OC[rows].bfloat16())
            assert torch.equal(left[slot, 0, :, probe], (drawn[rows] * (sign * EPS)).bfloat16())
            right_CI = bank.right_IC[cols].T.bfloat16()
            assert torch.equal(right[slot, 0, :in_use], right_CI)
            assert torch.equal(right[slot, 0, probe], right_CI[bank.columns(key.stage)])


@on_rows(Row("vllm", dtype="bfloat16"))
def test_half_precision_is_close_to_single(subject: Opened) -> None:
    oracle = oracle_of(Row("dense")).reset()
    eps, slopes = 1e-2, []
    for step in range(8):
        key = key_of(step)
        pairs = [[opened.ask((key, a)).value for a in (eps, -eps)] for opened in (subject, oracle)]
        slopes.append([(plus - minus) / (2 * eps) for plus, minus in pairs])
        assert subject.ask().value == pytest.approx(oracle.ask().value, abs=0.02)
        for opened in (subject, oracle):
            opened.train(1)
    assert float(torch.corrcoef(torch.tensor(slopes).T)[0, 1]) > 0.99


@on_rows(Row("vllm", dtype="bfloat16"))
def test_half_precision_refuses_a_point_of_several_stages(subject: Opened) -> None:
    subject.train(4)
    with pytest.raises(ConfigError, match=r"`backend\.dtype=float32`"):
        subject.ask((key_of(0), EPS), (key_of(3), EPS))


# --- an engine in its own process


@on_rows(Row("vllm", process="child"))
def test_three_steps_in_a_child_process_are_the_oracles(subject: Opened) -> None:
    batches = [subject.examples[:4]] * 3
    ours, theirs = (LOZO.run(opened.backend, batches) for opened in (subject, oracle_of(subject.row).reset()))
    assert [step.slope for step in ours] == pytest.approx([step.slope for step in theirs], abs=5e-3)


@on_rows(Row("vllm", process="child"))
def test_a_killed_engine_is_an_error_and_not_a_hang(subject: Opened) -> None:
    """Killed in the middle of evaluations: vLLM's own client would wait for an answer for ever."""
    train(subject, 2)
    request = subject.request()
    (engine,) = (child for child in multiprocessing.active_children() if child.name == "EngineCore")
    assert engine.pid is not None
    killer = threading.Timer(0.5, os.kill, (engine.pid, signal.SIGKILL))
    try:
        killer.start()
        with pytest.raises(EngineError, match="the vLLM engine died"):
            for _ in range(10_000):
                subject.backend.evaluate([request])
        with pytest.raises(EngineError, match="the vLLM engine died"):
            subject.backend.snapshot()
    finally:
        subject.backend.close()
        subject.open()
    assert subject.backend.version == 0 and len(subject.ask().losses) == len(subject.examples)


# --- starting, and columns that nobody uses


def test_another_version_is_refused_by_name(internals: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    monkeypatch.setattr(vllm, "__version__", "0.99.0")
    with pytest.raises(EngineError, match=r"0\.99\.0 is installed.*supports 0\.32"):
        internals.check_version()
    with pytest.raises(EngineError, match=r"no module vllm\.gone.*supports vLLM 0\.32"):
        internals._module("vllm.gone")


@on_rows(Row("vllm"))
def test_columns_behind_those_in_use_are_zero(subject: Opened) -> None:
    """GPU kernels multiply all columns of a slot: what a longer bank left there would count again."""
    train(subject, 25)
    subject.ask((key_of(subject.backend.version), EPS))
    subject.reset()
    subject.ask()
    used = worker_of(subject).zo_factors.bank.num_columns
    for layer in layers_of(subject).values():
        for left in layer.lora_b_stacked:
            assert not left[0, ..., used:].any()


def test_an_engine_that_does_not_start_says_so_and_leaves_room_for_the_next(internals: Any) -> None:
    row = Row("vllm")
    layout, _ = model_of(row)
    broken = VllmBackend(max_length=256, block_size=7)
    with pytest.raises(EngineError, match=r"does not start.*backend"):
        broken.open(layout, directions(refresh_every=3), Sgd(lr=1.0), BankSpec(rank=RANK, capacity=8))
    assert not broken.is_open
    opened = Opened(row)
    assert opened.ask().scores
    opened.backend.close()
