"""Options of several tokens on real vLLM: tries score what one request for each candidate scores, for far fewer tokens.

Two tasks that are composed here and read as users' files are: COPA-like rows, whose two options are sentences, and
ReCoRD-like ones, passages of 100 to 200 tokens with 8 to 24 names, many of which begin alike. The last options are
ReCoRD's own: the rest of the statement with a name filled in.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from tests.backends import EPS, TINY, Opened, Row, key_of, on_rows, oracle_of, prepared
from zo_lightning.backends.vllm.rows import row_logprobs
from zo_lightning.backends.vllm.scoring import trie_nodes, trie_walks
from zo_lightning.bench.candidates import copa_rows, make_task, record_rows
from zo_lightning.core.types import Example
from zo_lightning.errors import EngineError
from zo_lightning.models import load_tokenizer

BLOCK = 32  # tokens of a block of the prefix cache, as the rows of tests/backends.py have it
ENGINES = tuple(Row("vllm", model) for model in TINY)
ROWS = {
    "copa": copa_rows(6, seed=1),
    "names": record_rows(6, seed=2, length=200),
    "record": record_rows(6, seed=3, length=200),
}


def examples_of(name: str, folder: Path, model: str) -> tuple[Example, ...]:
    """The training examples of a task, read from files in ``folder``."""
    tokenizer = load_tokenizer(prepared(model).folder)
    return make_task(name, ROWS[name], folder).texts().encode(tokenizer, max_length=256).train


@pytest.fixture(params=ROWS)
def examples(request: pytest.FixtureRequest, tmp_path: Path, opened: Opened) -> tuple[Example, ...]:
    return examples_of(request.param, tmp_path, opened.row.model)


def test_the_tasks_are_what_they_are_meant_to_be(tmp_path: Path) -> None:
    """Two sentences; names of 1 to 5 tokens, 8 to 24 of them, behind 100 to 200 tokens, with shared beginnings."""
    copa = examples_of("copa", tmp_path, "tiny-llama")
    assert all(len(e.options) == 2 and min(map(len, e.options)) > 10 for e in copa)
    names = examples_of("names", tmp_path, "tiny-llama")
    assert {len(option) for e in names for option in e.options} == {1, 2, 3, 4, 5}
    assert all(8 <= len(e.options) <= 24 for e in names) and len({len(e.options) for e in names}) > 3
    assert all(100 <= len(e.prompt) <= 200 for e in names)
    assert all(len(trie_nodes(e)) < sum(map(len, e.options)) for e in names)


def flat(scores: Sequence[tuple[float, ...]]) -> list[float]:
    return [score for of_example in scores for score in of_example]


@on_rows(*ENGINES)
def test_tries_score_what_one_request_for_each_candidate_scores(subject: Opened, examples: tuple[Example, ...]) -> None:
    """Both sides of a probe and the centre, after two stages: by rows of the same engine, and by the dense backend."""
    subject.train(5)
    oracle = oracle_of(subject.row).reset()
    oracle.train(5)
    points = ([(key_of(5), EPS)], [(key_of(5), -EPS)], [])
    requests = [subject.request(*terms, examples=examples) for terms in points]
    expected = oracle.backend.evaluate(requests)
    for seen, dense in zip(subject.backend.evaluate(requests), expected, strict=True):
        assert seen.losses == pytest.approx(dense.losses, abs=1e-5)
        assert flat(seen.scores) == pytest.approx(flat(dense.scores), abs=1e-5)
    for terms in points:
        seen = subject.ask(*terms, examples=examples)  # leaves the factors of the point in the first adapter
        rows, _ = row_logprobs(subject.backend._llm, examples, adapter=1)
        lengths = [len(option) for example in examples for option in example.options]
        means = [total / length for total, length in zip(flat(rows), lengths, strict=True)]
        assert flat(seen.scores) == pytest.approx(means, abs=1e-5)


@on_rows(Row("vllm"))
def test_a_prompt_is_computed_once_for_each_point(subject: Opened, examples: tuple[Example, ...]) -> None:
    """Requests of one example enter together, and still find the blocks of those before them, token for token.

    So each token of a trie is computed once, and less than a block again for each further walk, on the average.
    """
    expected = expected_tokens(examples)
    requests = [subject.request((key_of(0), a), examples=examples) for a in (EPS, -EPS)]
    assert [seen.tokens for seen in subject.backend.evaluate(requests)] == [expected] * 2
    assert subject.ask((key_of(0), EPS), examples=examples[:1]).tokens == expected_tokens(examples[:1])
    trie = sum(len(example.prompt) + len(trie_nodes(example)) - 1 for example in examples)
    assert trie <= expected <= trie + BLOCK * sum(len(trie_walks(example)) for example in examples)
    _, row_tokens = row_logprobs(subject.backend._llm, examples, adapter=1)
    rows = sum(len(example.prompt) + len(option) for example in examples for option in example.options)
    assert row_tokens == rows > expected


def expected_tokens(examples: Sequence[Example]) -> int:
    """With each walk's prompt found in the cache as far as full blocks of earlier ones reach, save its last token."""
    total, blocks = 0, {()}
    for walk in (walk for example in examples for walk in trie_walks(example)):
        found = max(end for end in range(0, len(walk.prompt), BLOCK) if walk.prompt[:end] in blocks)
        blocks |= {walk.prompt[:end] for end in range(BLOCK, len(walk.prompt) + 1, BLOCK)}
        total += len(walk.prompt) - found + len(walk.forced)
    return total


@on_rows(Row("vllm"))
def test_one_forced_token_is_as_good_as_a_request(subject: Opened) -> None:
    """Options of every shape: an end-of-text token, a repeated token, one option the beginning of another."""
    end, options = 2, ((2, 2, 9), (2,), (9, 2, 2, 2), (9, 9), (9,), (7, 8, 7, 8))
    examples = [Example(prompt=tuple(range(10, 10 + n)), options=options, label=0) for n in (1, 31, 32, 33, 64)]
    assert any(end in walk.forced for walk in trie_walks(examples[0]))
    seen = subject.ask((key_of(0), EPS), examples=examples)
    dense = oracle_of(subject.row).reset().ask((key_of(0), EPS), examples=examples)
    assert flat(seen.scores) == pytest.approx(flat(dense.scores), abs=1e-5)


@on_rows(Row("vllm"))
def test_more_options_than_one_request_can_ask(subject: Opened) -> None:
    """300 options of one token, and as many that also go on from the first and the last of them."""
    wide = tuple((token,) for token in range(20, 320))
    deep = (*wide, *((first, token) for first in (20, 319) for token in range(100, 250)))
    examples = [Example(prompt=(5, 6, 7), options=options, label=0) for options in (wide, deep)]
    seen = subject.ask((key_of(0), EPS), examples=examples)
    dense = oracle_of(subject.row).reset().ask((key_of(0), EPS), examples=examples)
    assert flat(seen.scores) == pytest.approx(flat(dense.scores), abs=1e-5)


@on_rows(Row("vllm"))
def test_an_engine_that_goes_its_own_way_is_an_error(subject: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    from zo_lightning.backends.vllm.forced import ForcedTokens

    monkeypatch.setattr(ForcedTokens, "apply", lambda self, logits: logits)
    with pytest.raises(EngineError, match=r"left the tokens of an option: `backend\.engine\.logits_processors`"):
        subject.ask((key_of(0), EPS))


@on_rows(Row("vllm"))
def test_the_same_example_twice_and_a_prompt_inside_an_option(subject: Opened) -> None:
    """Requests of one point share their cache, whatever example they come from."""
    first = Example(prompt=tuple(range(3, 36)), options=((40, 41, 42), (40, 43)), label=0)
    longer = Example(prompt=(*first.prompt, 40, 41), options=((42,), (44, 45)), label=1)
    seen = subject.ask((key_of(0), EPS), examples=(first, longer, first))
    dense = oracle_of(subject.row).reset().ask((key_of(0), EPS), examples=(first, longer, first))
    assert flat(seen.scores) == pytest.approx(flat(dense.scores), abs=1e-5)
    assert all(a == b for a, b in pairwise((seen.losses[0], seen.losses[2])))


@pytest.mark.slow
@pytest.mark.vllm
def test_the_benchmark_counts_and_agrees(tmp_path: Path) -> None:
    """In a process of its own, as its engine must not meet the tests' engine."""
    pytest.importorskip("vllm", reason="needs vLLM, which has no wheel for this machine")
    words = ["tries", "model=tiny-llama", "data.batch_size=2", "rounds=1", "warm_up=0", f"hydra.run.dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "zo_lightning.cli.bench", *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    for name in ROWS:
        found = facts[name]
        assert found["trie_tokens"] <= found["tokens"] < found["row_tokens"]
        assert found["largest_difference"] < 1e-5 and found["seconds"] > 0 < found["row_seconds"]
    assert (tmp_path / "tries.png").stat().st_size and json.loads((tmp_path / "tries.json").read_text()) == facts
