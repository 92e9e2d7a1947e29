"""vLLM as it is, in a process of its own: scores answer options by a base, its adapters, and other models.

Reads from standard input ``{"examples": [[prompt, options], ...], "engines": [{"model": folder, "max_lora_rank": int or
null, "adapters": [folder, ...]}, ...]}``. The last line it prints is one list an engine: the mean token log-probability
of each option of each example, by the model itself and by each of its adapters. Nothing of ours is imported.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def scores(llm: Any, examples: list[Any], lora: Any) -> list[list[float]]:
    """Every token of every option is asked as a next one: on CPU, ``prompt_logprobs`` fail with adapters."""
    from vllm import SamplingParams

    asked = [
        (prompt + option[:j], token)
        for prompt, options in examples
        for option in options
        for j, token in enumerate(option)
    ]
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt, _ in asked],
        [
            SamplingParams(max_tokens=1, temperature=0.0, logprob_token_ids=[token], detokenize=False)
            for _, token in asked
        ],
        lora_request=lora,
        use_tqdm=False,
    )
    found = iter(
        [output.outputs[0].logprobs[0][token].logprob for output, (_, token) in zip(outputs, asked, strict=True)]
    )
    return [[sum(next(found) for _ in option) / len(option) for option in options] for _, options in examples]


def answers(examples: list[Any], engine: dict[str, Any]) -> list[Any]:
    from vllm import LLM
    from vllm.lora.request import LoRARequest

    rank = engine["max_lora_rank"]
    adapters = {"enable_lora": True, "max_lora_rank": rank} if rank else {}
    llm = LLM(
        engine["model"],
        dtype="float32",
        max_model_len=256,
        enforce_eager=True,
        skip_tokenizer_init=True,
        use_tqdm_on_load=False,
        **adapters,
    )
    requests = [LoRARequest(f"adapter{i}", i, folder) for i, folder in enumerate(engine["adapters"], start=1)]
    found = [scores(llm, examples, lora) for lora in (None, *requests)]
    llm.llm_engine.engine_core.shutdown()
    return found


if __name__ == "__main__":
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCH_COMPILE_DISABLE": "1",  # one function of the sampler would need a C++ compiler
    }
    task = json.load(sys.stdin)
    result = [answers(task["examples"], engine) for engine in task["engines"]]
    assert "zo_lightning" not in sys.modules
    print(json.dumps(result))
