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
from zo_lightning.backends.vllm import VllmBackend
from zo_lightning.backends.vllm.engine import FORCED, sampling_of
from zo_lightning.backends.vllm.scoring import option_logprobs, trie_walks
from zo_lightning.backends.vllm.wire import write_point
from zo_lightning.core.types import BankSpec
from zo_lightning.errors import EngineError
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


def slices_of(subject: Opened) -> dict[str, Any]:
    """The engine's own adapter tensors and the base weight of each matrix."""
    from zo_lightning.backends.vllm import internals

    return internals.adapter_slices(worker_of(subject))


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
    """No product with factors, even when most of the bank is folded; with an adapter one in each layer."""
    from zo_lightning.backends.vllm import cpu_lora

    train(subject, 12)
    runs: list[Any] = []
    add = cpu_lora.add_low_rank
    monkeypatch.setattr(cpu_lora, "add_low_rank", lambda *args: (runs.append(args[-1]), add(*args)))
    subject.backend.infer(subject.examples[:1])
    assert runs == []
    subject.ask(examples=subject.examples[:1])
    assert [len(of_layer) for of_layer in runs] == [1] * len(layers_of(subject))


@on_rows(Row("vllm"))
def test_only_columns_that_a_step_probes_are_multiplied(subject: Opened) -> None:
    """Whatever the bank holds; the rest is in a working copy, made from the base, which stays as it is."""
    weights = [matrix.clone() for *_, matrix in slices_of(subject).values()]
    for steps, slots in ((4, 1), (12, 2), (34, 4)):
        subject.reset()
        train(subject, steps)
        adapters = worker_of(subject).zo_factors._adapters
        assert len(subject.backend.snapshot()["slots"]) == slots
        assert adapters.slots.right_CI.shape[0] == RANK
        copies = [linear._working for linear in adapters._linears]
        assert all((copy is None) == (slots == 1) for copy in copies)
    for before, (*_, after) in zip(weights, slices_of(subject).values(), strict=True):
        assert torch.equal(before, after)


@on_rows(Row("vllm"))
def test_points_base_and_folded_stages_in_one_batch(subject: Opened) -> None:
    """Tokens without an adapter get the base's product, and those of each point their own."""
    train(subject, 25)
    backend, key = subject.backend, key_of(25, refresh_every=10)
    requests = [subject.request((key, EPS)), subject.request((key, -EPS))]
    points = [request.point for request in requests]
    alone = [backend.infer(subject.examples), *(seen.scores for seen in backend.evaluate(requests))]
    backend._rpc("zo_program", tuple(write_point(point) for point in points))
    answers, _ = backend._generate([(1, subject.examples), (None, subject.examples), (2, subject.examples)])
    per_point = [answers[k * len(subject.examples) : (k + 1) * len(subject.examples)] for k in range(3)]
    assert _close(per_point[1], alone[0])
    for found, scores in ((per_point[0], alone[1]), (per_point[2], alone[2])):
        for example, answer, expected in zip(subject.examples, found, scores, strict=True):
            sums = option_logprobs(example, answer)
            means = [total / len(option) for total, option in zip(sums, example.options, strict=True)]
            assert means == pytest.approx(expected, abs=1e-5)


def _close(found: list[Any], expected: list[Any]) -> bool:
    return all(
        one[prompt][token] == pytest.approx(other[prompt][token], abs=1e-5)
        for one, other in zip(found, expected, strict=True)
        for prompt in other
        for token in other[prompt]
    )


@on_rows(Row("vllm"))
def test_the_base_answers_as_an_engine_without_adapters_bit_by_bit(subject: Opened) -> None:
    """Before and after 30 steps: log-probabilities of the bare model, from an engine that knows of no adapter."""
    from vllm import LLM

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
            kv_cache_memory_bytes=2**28,
            enforce_eager=True,
            skip_tokenizer_init=True,
            logits_processors=[FORCED],
        )
        try:
            walks = [walk for example in subject.examples for walk in trie_walks(example)]
            prompts = [{"prompt_token_ids": list(walk.prompt)} for walk in walks]
            outputs = bare.generate(prompts, list(map(sampling_of, walks)), use_tqdm=False)
        finally:
            bare.llm_engine.engine_core.shutdown()
    finally:
        subject.open()
    found = {
        (walk.prompt, node): {token: logprobs[token].logprob for token in node.children}
        for walk, output in zip(walks, outputs, strict=True)
        for node, logprobs in zip(walk.nodes, output.outputs[0].logprobs, strict=True)
    }
    expected = {
        (walk.prompt, node): answers[node.prompt]
        for example, answers in zip(subject.examples, before, strict=True)
        for walk in trie_walks(example)
        for node in walk.nodes
    }
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


LAYER = ("_apply_sync", "_get_quant_method", "lora_a_stacked", "lora_b_stacked", "punica_wrapper", "base_layer")
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
        internals.adapter_slices(worker)
        internals.register_adapters(worker, 0)
        internals.adapter_layers(worker)[0].replace(lambda inputs, bias: inputs)


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


# --- the engine's own adapters, which serve GPUs


@on_rows(Row("vllm"), Row("vllm", dtype="bfloat16"))
def test_the_engines_own_adapters_give_the_same_answers(
    subject: Opened, internals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU engine does with factors in its stacked tensors, here by the engine's own products on CPU."""
    tolerance = 1e-4 if subject.row.dtype == "float32" else 0.02
    train(subject, 25)
    learned = subject.backend.snapshot()
    terms = [((key_of(25, refresh_every=10), sign * EPS),) for sign in (1.0, -1.0)]
    expected = [subject.ask(*term).losses for term in [(), *terms]]
    subject.backend.close()
    try:
        with monkeypatch.context() as gpu:
            gpu.setattr(internals, "on_cpu", lambda: False)
            subject.open()
        subject.backend.load(learned)
        assert type(worker_of(subject).zo_factors._adapters).__name__ == "StackedAdapters"
        for term, losses in zip([(), *terms], expected, strict=True):
            assert subject.ask(*term).losses == pytest.approx(losses, abs=tolerance)
    finally:
        subject.backend.close()
        subject.open()


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
