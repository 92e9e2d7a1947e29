"""The packed backend beyond the contract: odd sizes, half precision, other models beside it, all parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from tests.backends import CAPACITY, EPS, RANK, Opened, Row, directions, key_of, on_rows, oracle_of, prepared
from zo_lightning.backends.packed import PackedBackend
from zo_lightning.core.types import BankSpec, DirectionKey, EvalRequest, Example, Point, Score, StepRecord
from zo_lightning.errors import ConfigError, EngineError
from zo_lightning.models import layout_of
from zo_lightning.updates import Sgd

ODD = (
    Example(prompt=(5,), options=((7,),), label=0),
    Example(prompt=(5,), options=((7, 8, 9, 10), (7,), (8,)), label=1),
    Example(prompt=tuple(range(3, 200)), options=((4, 5), (6, 7, 8)), label=0),
    Example(prompt=(5, 6), options=tuple((token,) for token in range(3, 60)), label=3),
)
SPEC = BankSpec(rank=RANK, capacity=CAPACITY)


@on_rows(Row("packed"), Row("packed", "tiny-opt", trainable="all"))
def test_odd_sizes_are_the_oracles(subject: Opened) -> None:
    oracle = oracle_of(subject.row).reset()
    for opened in (subject, oracle):
        opened.train(4)
    for examples in (ODD, ODD[:1], ODD[2:3]):
        for terms in ((), ((key_of(4), EPS),)):
            seen, expected = (opened.ask(*terms, examples=examples) for opened in (subject, oracle))
            assert seen.losses == pytest.approx(expected.losses, abs=2e-5)


@on_rows(Row("packed"))
def test_many_points_are_answered_as_each_alone(subject: Opened) -> None:
    """Thirty directions of one stage, some of them asked on both sides, the centre, and directions of two stages."""
    subject.train(4)
    terms = [((key_of(4, index=index), sign * EPS),) for index in range(30) for sign in (1.0, -1.0)[: 1 + index % 2]]
    terms += [(), ((key_of(4), EPS), (key_of(0), 2 * EPS))]
    requests = [subject.request(*own, examples=ODD[i % 3 : i % 3 + 2]) for i, own in enumerate(terms)]
    together = subject.backend.evaluate(requests)
    for request, seen in zip(requests, together, strict=True):
        (alone,) = subject.backend.evaluate([request])
        assert seen.losses == pytest.approx(alone.losses, abs=1e-5)


@pytest.mark.parametrize("max_tokens", [1, 50, 300])
def test_batches_above_the_limit_are_split(max_tokens: int) -> None:
    layout = prepared("tiny-qwen3").layout
    whole, parts = PackedBackend(device="cpu"), PackedBackend(device="cpu", max_tokens=max_tokens)
    seen = []
    for backend in (whole, parts):
        backend.open(layout, directions(refresh_every=3), Sgd(lr=1.0), SPEC)
        points = [Point(version=0, terms=((key_of(0), sign * EPS),)) for sign in (1.0, -1.0)]
        requests = [EvalRequest(point=point, examples=ODD, objective=Score()) for point in points]
        seen.append([loss for answer in backend.evaluate(requests) for loss in answer.losses])
    assert seen[0] == pytest.approx(seen[1], abs=1e-5)


def test_a_limit_of_no_token_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"backend\.max_tokens"):
        PackedBackend(max_tokens=0)


@on_rows(Row("packed"))
def test_tokens_are_counted_without_padding_and_prompts_once(subject: Opened) -> None:
    """One token an option: the prompt alone. Else the options' inner tokens, shared ones once."""
    assert subject.ask(examples=ODD[:1]).tokens == 1
    assert subject.ask(examples=ODD[1:2]).tokens == 1 + 3
    assert subject.ask(examples=ODD[2:3]).tokens == 197 + 1 + 2


@on_rows(Row("packed"))
def test_plain_inference_is_the_base_whatever_was_learned(subject: Opened) -> None:
    before = subject.backend.infer(subject.examples, ODD)
    centre = subject.ask()
    subject.train(5)
    subject.ask((key_of(5), EPS))
    assert subject.backend.infer(subject.examples, ODD) == before
    assert len(before) == len(subject.examples) + len(ODD)
    means = [total / len(option) for total, option in zip(before[0], subject.examples[0].options, strict=True)]
    assert means == pytest.approx(centre.scores[0], abs=1e-6)


def test_folded_stages_answer_as_factors_do() -> None:
    """Stages begin, end and come round again; commits without a question between them, and an older snapshot."""
    layout = prepared("tiny-llama").layout
    folding, plain = (PackedBackend(device="cpu", fold_stages=fold) for fold in (True, False))
    older: list[dict] = []
    for backend in (folding, plain):
        backend.open(layout, directions(refresh_every=2), Sgd(lr=1.0), SPEC)

    def ask(key: DirectionKey) -> None:
        seen = []
        for backend in (folding, plain):
            points = [Point(version=backend.version, terms=terms) for terms in ((), ((key, EPS),), ((key, -EPS),))]
            requests = [EvalRequest(point=point, examples=ODD, objective=Score()) for point in points]
            seen.append([loss for answer in backend.evaluate(requests) for loss in answer.losses])
        assert seen[0] == pytest.approx(seen[1], abs=1e-5)

    for step in range(20):
        key = key_of(step, refresh_every=2)
        if step % 5:  # now and then nothing is asked
            ask(key)
        for backend in (folding, plain):
            backend.commit(StepRecord(step=step, version=step, lr=1e-2, terms=((key, 1.0),)))
        if step == 9:
            older = [backend.snapshot() for backend in (folding, plain)]
    for backend, snapshot in zip((folding, plain), older, strict=True):
        backend.load(snapshot)
    ask(key_of(10, refresh_every=2))


# --- beside others


def test_two_backends_and_another_model_do_not_disturb_each_other() -> None:
    """Each keeps its factors, and a model of the same class its own attention and modules."""
    folder, layout = prepared("tiny-llama").folder, prepared("tiny-llama").layout
    other = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([ODD[2].prompt])
    with torch.inference_mode():
        before = other(input_ids=ids).logits
    backends = [PackedBackend(device="cpu"), PackedBackend(device="cpu")]
    for backend in backends:
        backend.open(layout, directions(refresh_every=3), Sgd(lr=1.0), SPEC)
    one, two = (Opened.__new__(Opened) for _ in backends)
    for opened, backend in zip((one, two), backends, strict=True):
        opened.backend, opened.layout, opened.examples = backend, layout, ODD
    at_base = two.ask()
    one.train(3)
    assert one.ask().losses != at_base.losses
    assert two.ask().losses == at_base.losses
    backends[0].close()
    assert two.ask().losses == at_base.losses
    with torch.inference_mode():
        assert torch.equal(other(input_ids=ids).logits, before)


def test_a_model_in_memory_is_adopted() -> None:
    found = prepared("tiny-llama")
    model = AutoModelForCausalLM.from_pretrained(found.folder, dtype=torch.float32)
    assert replace(layout_of(model, "here"), model=found.layout.model) == found.layout
    adopted, opened = PackedBackend(device="cpu"), PackedBackend(device="cpu")
    adopted.adopt(model, layout_of(model, "here"), directions(refresh_every=3), Sgd(lr=1.0), SPEC)
    opened.open(found.layout, directions(refresh_every=3), Sgd(lr=1.0), SPEC)
    assert adopted.infer(ODD) == opened.infer(ODD)
    assert adopted.digest() == opened.digest()


def test_a_model_whose_attention_asks_for_more_is_refused() -> None:
    model = AutoModelForCausalLM.from_config(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32))
    with pytest.raises(EngineError, match=r"not gpt2: choose `backend=vllm` or `backend=dense`"):
        PackedBackend(device="cpu").adopt(
            model, layout_of(model, "gpt2", "all"), directions(refresh_every=3), Sgd(lr=1.0), SPEC
        )


# --- half precision


@on_rows(Row("packed", dtype="bfloat16"))
def test_half_precision_keeps_what_was_learned_apart_from_the_probe(subject: Opened) -> None:
    """[P | U] with the coefficient on U's side: P is rounded by itself, however small it is beside eps * U."""
    subject.train(4)
    snapshot = subject.backend.snapshot()
    snapshot["left"] = snapshot["left"] * 1e-4
    subject.backend.load(snapshot)
    subject.ask((key_of(4), EPS))
    factors = subject.backend._factors
    bank, (columns,) = factors._bank, factors._own.values()
    for left_OC, rows in zip(columns.left, bank.row_spans, strict=True):
        assert torch.equal(left_OC[:, : bank.num_columns], bank.left_OC[rows].bfloat16())
        assert float(left_OC[:, bank.num_columns :].float().abs().max()) > 1.0
