"""Option scores by one request for each candidate, the whole text in one row: what tries are held against.

Exact, and slow: every candidate's prompt is computed again, since requests for prompt log-probabilities take nothing
from the prefix cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from zo_lightning.core.types import Example

if TYPE_CHECKING:
    from vllm import LLM


def row_logprobs(llm: LLM, examples: Sequence[Example], *, adapter: int | None) -> tuple[list[tuple[float, ...]], int]:
    """Sums of token log-probabilities (nats) of every option of every example, and the tokens computed.

    Args:
        llm: an open engine.
        examples: what to score.
        adapter: the adapter whose factors count, as they are; None for the base.
    """
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    outputs = llm.generate(
        [[*example.prompt, *option] for example in examples for option in example.options],
        SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False),
        lora_request=None if adapter is None else LoRARequest(f"point{adapter}", adapter, "programmed in place"),
        use_tqdm=False,
    )
    tokens = sum(len(output.prompt_token_ids or ()) - (output.num_cached_tokens or 0) for output in outputs)
    whole = iter([_token_logprobs(output) for output in outputs])
    return [
        tuple(sum(row[len(example.prompt) :]) for row in islice(whole, len(example.options))) for example in examples
    ], tokens


def _token_logprobs(output: Any) -> list[float]:
    """One number for each token of the prompt; the first has none before it, and counts nothing."""
    found = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    return [0.0 if at is None else at[token].logprob for token, at in found]
