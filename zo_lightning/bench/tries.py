"""``zo-bench tries``: options of several tokens by the tries of their tokens, and by one row for each candidate."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from zo_lightning.backends.vllm import VllmBackend
from zo_lightning.backends.vllm.rows import row_logprobs
from zo_lightning.bench.candidates import copa_rows, make_task, record_rows
from zo_lightning.bench.report import Report, bars
from zo_lightning.bench.rows import candidate_rows, real_load
from zo_lightning.bench.timing import Case, Ratio, measure, ratio_of_medians
from zo_lightning.bench.workbench import Examples, Workbench
from zo_lightning.core.types import EvalRequest, Example, Observation, Workload
from zo_lightning.errors import ConfigError

_NAMES = ("copa", "names", "record")


def run(bench: Workbench) -> Report:
    """Score the same batches both ways, at one point of a probe.

    Raises:
        ConfigError: if the backend is not vLLM.
    """
    if not isinstance(bench.make_backend("backend"), VllmBackend):
        raise ConfigError("`zo-bench tries` measures requests to an engine: choose `backend=vllm`")
    batches = {name: _batch(bench, name) for name in _NAMES}
    with bench.opened("backend", workloads=_workloads(batches.values())) as backend:
        cases: dict[str, Case] = {}
        facts: dict[str, dict[str, Any]] = {}
        for name, examples in batches.items():
            request = _request(bench, examples)
            facts[name] = _compare(backend, request)
            cases[f"{name} tries"] = partial(_by_tries, backend, request)
            cases[f"{name} rows"] = partial(_by_rows, backend, examples)
        seconds = measure(cases, rounds=bench.rounds, warm_up=bench.warm_up)
    return _report(bench, facts, seconds)


def _batch(bench: Workbench, name: str) -> Examples:
    """As many examples as a step has; passages of some 150 tokens."""
    from zo_lightning.models import load_tokenizer

    rows = (copa_rows if name == "copa" else record_rows)(bench.batch_size, seed=bench.seed)
    with TemporaryDirectory() as folder:
        texts = make_task(name, rows, Path(folder)).texts()
    return texts.encode(load_tokenizer(bench.model.folder), max_length=bench.model.max_length).train


def _workloads(batches: Collection[Examples]) -> list[Workload]:
    """The calls of the tries, and rows one by one: these only need room for the longest."""
    rows = [Example(prompt=row, options=((0,),), label=0) for batch in batches for row in candidate_rows(batch)]
    calls = [Workload(examples=batch, batch_size=len(batch)) for batch in batches]
    return [*calls, Workload(examples=tuple(rows), batch_size=1)]


def _request(bench: Workbench, examples: Examples) -> EvalRequest:
    keys = bench.method.direction.keys(seed=bench.seed, step=0)
    return bench.method.query.plan(keys, examples, 0, bench.objective)[0]


def _by_tries(backend: Any, request: EvalRequest, number: int = 0) -> Observation:
    (seen,) = backend.evaluate((request,))
    return seen


def _by_rows(backend: Any, examples: Examples, number: int = 0) -> tuple[list[tuple[float, ...]], int]:
    """At the factors that the first adapter has since the last evaluation, which are those of the point."""
    return row_logprobs(backend._llm, examples, adapter=1)


def _compare(backend: Any, request: EvalRequest) -> dict[str, Any]:
    """Tokens that each way computes, the least that would do, and how far the option scores are apart (nats)."""
    seen = _by_tries(backend, request)
    rows, row_tokens = _by_rows(backend, request.examples)
    means = [
        total / len(option)
        for example, totals in zip(request.examples, rows, strict=True)
        for option, total in zip(example.options, totals, strict=True)
    ]
    scores = [score for of_example in seen.scores for score in of_example]
    return {
        "options": len(scores),
        "trie_tokens": real_load(request.examples).tokens,
        "tokens": seen.tokens,
        "row_tokens": row_tokens,
        "largest_difference": max(abs(a - b) for a, b in zip(scores, means, strict=True)),
    }


def _report(bench: Workbench, facts: Mapping[str, dict[str, Any]], seconds: Mapping[str, Sequence[float]]) -> Report:
    rows = []
    for name, found in facts.items():
        tries, by_row = seconds[f"{name} tries"], seconds[f"{name} rows"]
        ratio = ratio_of_medians(by_row, tries)
        found |= {"seconds": median(tries), "row_seconds": median(by_row), **ratio.facts("rows_over_tries")}
        rows.append(_row(name, found, ratio))
    return Report(
        title=f"options of several tokens on {bench.model_name}, batch {bench.batch_size}, one point",
        columns=("", "options", "in tries", "computed", "rows", "seconds", "rows", "rows / tries"),
        rows=rows,
        facts={**facts, "rounds": bench.rounds, "batch_size": bench.batch_size},
        draw=lambda axes: bars(axes, {name: median(values) for name, values in seconds.items()}, "seconds (median)"),
        notes=[
            "copa, names and record: two sentences; the names in a passage; a statement with each of these names",
            "tokens in tries: each once; computed: with those again that stand behind a full block of the cache; rows: "
            "one row for each candidate",
            f"option scores differ by at most {max(f['largest_difference'] for f in facts.values()):.1e} nats a token",
            f"medians of {bench.rounds} rounds, every case once a round; in brackets 95 % intervals",
        ],
    )


def _row(name: str, found: Mapping[str, Any], ratio: Ratio) -> tuple[str, ...]:
    counts = (f"{found[key]:,}" for key in ("options", "trie_tokens", "tokens", "row_tokens"))
    return (name, *counts, f"{found['seconds']:.3f}", f"{found['row_seconds']:.3f}", str(ratio))
