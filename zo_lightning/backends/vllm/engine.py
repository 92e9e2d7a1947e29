"""The trainer's side of vLLM: turns evaluation requests into inference requests and back."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from zo_lightning import errors
from zo_lightning.backends.dtype import choose_dtype
from zo_lightning.backends.shares import share_of_cores
from zo_lightning.backends.vllm.fit import Limits, Wanted, fit_engine
from zo_lightning.backends.vllm.scoring import FORCED_KEY, Walk, option_logprobs, requests_of
from zo_lightning.backends.vllm.wire import pack, unpack, write_layout, write_point, write_record
from zo_lightning.core.bank import check_version
from zo_lightning.core.method import to_recipe
from zo_lightning.core.objective import observe
from zo_lightning.core.roles import Direction, Update
from zo_lightning.core.shards import join, shard_layout
from zo_lightning.core.types import (
    BankSpec,
    BaseDigest,
    Capabilities,
    EvalRequest,
    Example,
    Layout,
    Observation,
    Point,
    Score,
    StepRecord,
    Workload,
)
from zo_lightning.errors import ConfigError, EngineDiedError, EngineError

if TYPE_CHECKING:
    from vllm import LLM

_environment: dict[str, str] = {}  # what was set here, so that the next job of a sweep may set it anew
_WORKER = "zo_lightning.backends.vllm.worker.ZOWorker"
FORCED = "zo_lightning.backends.vllm.forced:ForcedTokens"


class VllmBackend:
    """Parameter points are adapters of one vLLM engine; the base is loaded once and stays frozen.

    Args:
        dtype: of the base: ``auto`` is float32 on CPU and bfloat16 on GPU.
        process: ``inline`` runs the engine in this process, ``child`` in its own (isolates its death).
        max_points: adapters registered, the parameter points of one batch.
        block_size: tokens of a key-value block; short blocks let options share a prompt's prefix.
        max_length: context in tokens (None: the longest of the workloads).
        max_num_batched_tokens: tokens of one engine iteration (None: those of the largest call, if memory allows).
        kv_cache_gib: key-value cache, GiB (None: what these tokens need; on GPU what is left).
        fold_stages: on CPU in float32, keep completed stages in a second copy of the linears, so that they cost no
            time; false saves that memory.
        engine: further arguments for ``vllm.LLM``, for example ``gpu_memory_utilization``.
    """

    def __init__(
        self,
        *,
        dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
        process: Literal["inline", "child"] = "inline",
        max_points: int = 2,
        block_size: int = 32,
        max_length: int | None = None,
        max_num_batched_tokens: int | None = None,
        kv_cache_gib: float | None = None,
        fold_stages: bool = True,
        engine: dict[str, Any] | None = None,
    ) -> None:
        if process not in ("inline", "child"):
            raise ConfigError(f"`backend.process` must be inline or child, not {process}")
        for key, only in (("pipeline_parallel_size", 1), ("data_parallel_size", 1), ("fully_sharded_loras", False)):
            if (engine or {}).get(key, only) != only:
                raise ConfigError(
                    f"`backend.engine.{key}` is not supported: `backend.engine.tensor_parallel_size` splits a model, "
                    "`trainer=ddp` a batch"
                )
        if "max_model_len" in (engine or {}):
            raise ConfigError("`backend.engine.max_model_len` is `model.max_length`: set that")
        limits = {
            "max_length": max_length,
            "max_num_batched_tokens": max_num_batched_tokens,
            "engine.max_num_seqs": (engine or {}).get("max_num_seqs"),
        }
        for key, value in limits.items():
            if value is not None and value < 1:
                raise ConfigError(f"`backend.{key}` must be at least 1, not {value}: without it, the work decides")
        self.dtype = choose_dtype(dtype, on_gpu=torch.cuda.is_available())
        self.process, self.max_points = process, max_points
        self._block_size, self._max_length = block_size, max_length
        self._max_num_batched_tokens, self._kv_cache_gib = max_num_batched_tokens, kv_cache_gib
        self._fold_stages, self._engine_args = fold_stages, dict(engine or {})
        self._llm: LLM | None = None
        self._layout: Layout | None = None
        self._version = 0
        self._salts = itertools.count()

    @property
    def capabilities(self) -> Capabilities:
        """Known without an engine."""
        return Capabilities(
            max_points=self.max_points,
            max_rank=512,
            provides=frozenset({"low_rank", "merge", "score"}),
            probe_columns=self.dtype != "float32",
        )

    @property
    def version(self) -> int:
        """The parameter version that requests must name."""
        return self._version

    @property
    def is_open(self) -> bool:
        """Whether an engine is running."""
        return self._llm is not None

    def open(
        self,
        layout: Layout,
        direction: Direction,
        update: Update,
        bank: BankSpec,
        workloads: Sequence[Workload] = (),
    ) -> None:
        """Start the engine, with limits under which a call is one iteration, and build the bank in its worker.

        Raises:
            ConfigError: for a layout with vectors, or if one sequence does not fit.
            EngineError: if vLLM is missing, is another version or does not hold the model as expected.
        """
        if layout.has_vectors:
            raise ConfigError(
                "`model.trainable=all` needs `backend=packed` or `backend=dense`: adapters carry no vectors"
            )
        num_workers = self._engine_args.get("tensor_parallel_size", 1)
        limits = self._fit(layout, workloads, num_workers)
        _set_environment(self.process, num_workers)
        from zo_lightning.backends.vllm import internals

        try:
            LLM = internals.import_llm()
        except ImportError as error:
            raise EngineError(
                f"`backend=vllm` needs vLLM ({error}): run `make install` (a CPU build serves machines without an "
                "NVIDIA GPU) or choose `backend=packed`"
            ) from error
        internals.check_version()
        internals.tolerate_llvmlite()
        settings = self._settings(layout, limits, bank)
        try:
            self._llm = LLM(**(settings | self._engine_args))
        except Exception as error:  # vLLM raises many kinds for a model or a setting that does not do
            internals.clean_up_failed_start()
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise EngineError(f"vLLM does not start: {reason}. Check `model.path` and `backend.*`") from error
        try:
            if self.process == "child":
                internals.fail_when_dead(internals.engine_core(self._llm))
            self._rpc(
                "zo_open",
                write_layout(layout),
                to_recipe(direction),
                to_recipe(update),
                to_recipe(bank),
                self.max_points,
                self._fold_stages,
            )
        except BaseException:
            self.close()
            raise
        self._layout, self._version = layout, 0

    def evaluate(self, requests: Sequence[EvalRequest]) -> tuple[Observation, ...]:
        """Answers in order; all requests of up to ``max_points`` points enter the engine together."""
        for request in requests:
            check_version(request.point.version, self._version)
            if not isinstance(request.objective, Score):
                raise ConfigError("`backend=vllm` scores options only: choose an objective that scores")
        answers: dict[int, Observation] = {}
        points = list(dict.fromkeys(request.point for request in requests))
        for start in range(0, len(points), self.max_points):
            wave = points[start : start + self.max_points]
            asked = [i for point in wave for i, request in enumerate(requests) if request.point == point]
            self._rpc("zo_program", tuple(write_point(point) for point in wave))
            observations = self._score([requests[i] for i in asked], wave)
            answers.update(zip(asked, observations, strict=True))
        return tuple(answers[i] for i in range(len(requests)))

    def commit(self, record: StepRecord) -> None:
        """Apply one record in every worker."""
        check_version(record.version, self._version)
        self._rpc("zo_commit", write_record(record))
        self._version += 1

    def snapshot(self) -> dict[str, Any]:
        """The bank as plain containers and tensors."""
        assert self._layout is not None
        parts = [unpack(part) for part in self._rpc("zo_snapshot")]
        shapes = [[(rows, cols) for _, rows, cols in part["matrices"]] for part in parts]
        shards = [shard_layout(self._layout, held, rank=i, size=len(parts)) for i, held in enumerate(shapes)]
        return join(parts, self._layout, shards)

    def load(self, snapshot: dict[str, Any]) -> None:
        """Restore a snapshot bit by bit."""
        self._rpc("zo_load", pack(snapshot))
        self._version = snapshot["version"]

    def digest(self) -> BaseDigest:
        """Digest of all base weights.

        Raises:
            EngineError: if it did not cover every parameter of the model.
        """
        digests, counts = zip(*self._rpc("zo_digest"), strict=True)
        covered = sum(counts)
        assert self._layout is not None
        if covered != self._layout.num_parameters:
            raise EngineError(f"the engine shows {covered} parameters, the model has {self._layout.num_parameters}")
        hexes = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
        return BaseDigest(hex=hexes, num_parameters=covered)

    def close(self) -> None:
        """Shut the engine down; a later ``open`` starts a fresh one."""
        if self._llm is not None:
            from zo_lightning.backends.vllm import internals

            internals.shut_down(self._llm)
            self._llm = None

    def infer(self, *groups: Sequence[Example]) -> list[dict[tuple[int, ...], Any]]:
        """Next-token log-probabilities at every node of the examples' options, by the base alone: plain inference.

        Args:
            groups: what to ask, all at once; groups share no cached prefix, as parameter points do not.
        """
        return self._generate([(None, group) for group in groups])[0]

    def _fit(self, layout: Layout, workloads: Sequence[Workload], num_workers: int) -> Limits:
        wanted = Wanted(
            block_size=self._block_size,
            max_length=self._max_length,
            max_num_batched_tokens=self._max_num_batched_tokens,
            max_num_seqs=self._engine_args.get("max_num_seqs"),
            kv_cache_gib=self._kv_cache_gib,
        )
        # On CPU the linears are there again, packed, and as a working copy.
        copies = 0 if torch.cuda.is_available() else 1 + self._fold_stages
        utilization = self._engine_args.get("gpu_memory_utilization", 0.9)
        return fit_engine(layout, workloads, wanted, getattr(torch, self.dtype), num_workers, copies, utilization)

    def _settings(self, layout: Layout, limits: Limits, bank: BankSpec) -> dict[str, Any]:
        """What the engine is started with, the user's own arguments aside."""
        from zo_lightning.backends.vllm import internals

        # On CPU the factors are kept beside the engine's adapters, which then need no columns.
        columns = 1 if internals.on_cpu() else bank.capacity + (bank.rank if self.capabilities.probe_columns else 0)
        return {
            "model": layout.model,
            "dtype": self.dtype,
            "max_model_len": limits.max_model_len,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "kv_cache_memory_bytes": limits.kv_cache_memory_bytes,
            "block_size": self._block_size,
            "max_num_seqs": limits.max_num_seqs,
            "max_logprobs": 256,
            "enable_lora": True,
            "max_loras": self.max_points,
            "max_lora_rank": min(rank for rank in internals.ADAPTER_RANKS if rank >= columns),
            "lora_target_modules": list(internals.fused_targets(layout)),
            "enable_prefix_caching": True,
            "worker_extension_cls": _WORKER,
            "logits_processors": [] if torch.cuda.is_available() else [FORCED],
            "enforce_eager": not torch.cuda.is_available(),
            "use_tqdm_on_load": False,
            "skip_tokenizer_init": True,  # requests are token ids
            "seed": 0,
        }

    def _score(self, requests: Sequence[EvalRequest], wave: Sequence[Point]) -> list[Observation]:
        start = time.perf_counter()
        answers, tokens = self._generate([(wave.index(r.point) + 1, r.examples) for r in requests])
        seconds = (time.perf_counter() - start) / len(requests)
        remaining, counts = iter(answers), iter(tokens)
        observations = []
        for request in requests:
            logprobs = [option_logprobs(example, next(remaining)) for example in request.examples]
            count = sum(itertools.islice(counts, len(request.examples)))
            assert isinstance(request.objective, Score)
            observations.append(observe(request.objective, request.examples, logprobs, tokens=count, seconds=seconds))
        return observations

    def _generate(
        self, groups: Sequence[tuple[int | None, Sequence[Example]]]
    ) -> tuple[list[dict[tuple[int, ...], Any]], list[int]]:
        """For each example of (adapter, examples): answers by node prompt, and the tokens computed for it."""
        from vllm.lora.request import LoRARequest

        call, prompts, sampling, loras = next(self._salts), [], [], []
        for number, (adapter, examples) in enumerate(groups):
            lora = None if adapter is None else LoRARequest(f"point{adapter}", adapter, "programmed in place")
            for walk in itertools.chain.from_iterable(map(requests_of, examples)):
                # Factors change in place: a prefix cached under an old salt would be stale.
                prompts.append({"prompt_token_ids": list(walk.prompt), "cache_salt": f"{call}-{number}"})
                sampling.append(sampling_of(walk))
                loras.append(lora)
        outputs = self._call(lambda llm: llm.generate(prompts, sampling, lora_request=loras, use_tqdm=False))
        return _collect([example for _, examples in groups for example in examples], iter(outputs))

    def _rpc(self, method: str, *args: Any) -> list[Any]:
        """What each worker returns."""
        answers = self._call(lambda llm: llm.collective_rpc("zo_call", args=(method, *args)))
        for _, error, text in answers:
            if error is not None:
                raise getattr(errors, error)(text)
        return [value for value, *_ in answers]

    def _call(self, use: Any) -> Any:
        if self._llm is None:
            raise EngineError("the vLLM engine is not open")
        from zo_lightning.backends.vllm import internals

        try:
            return use(self._llm)
        except internals.dead_error() as error:
            raise EngineDiedError(
                f"the vLLM engine died ({error}); what it logged is above. `ckpt_path=<run folder>` goes on from the "
                "last checkpoint, if one was written"
            ) from error


def _collect(examples: Sequence[Example], outputs: Iterator[Any]) -> tuple[list[dict[tuple[int, ...], Any]], list[int]]:
    answers, tokens = [], []
    for example in examples:
        found: dict[tuple[int, ...], Any] = {}
        computed = 0
        for walk in requests_of(example):
            output = next(outputs)
            answer = output.outputs[0]
            if tuple(answer.token_ids[:-1]) != walk.forced:
                raise EngineError(
                    "vLLM left the tokens of an option: `backend.engine.logits_processors` must not be set"
                )
            for node, logprobs in zip(walk.nodes, answer.logprobs, strict=True):
                children = {token: logprobs[token].logprob for token in node.children}
                found.setdefault(node.prompt, {}).update(children)
            computed += len(walk.prompt) - (output.num_cached_tokens or 0) + len(walk.forced)
        answers.append(found)
        tokens.append(computed)
    return answers, tokens


def sampling_of(walk: Walk) -> Any:
    """Asks for the log-probabilities at every node of a walk."""
    from vllm import SamplingParams

    return SamplingParams(
        max_tokens=len(walk.nodes),
        temperature=0.0,
        ignore_eos=True,
        logprob_token_ids=list(walk.asked),
        detokenize=False,
        extra_args={FORCED_KEY: list(walk.forced)} if walk.forced else None,
    )


def _set_environment(process: str, num_workers: int) -> None:
    """The engine reads these when an engine starts; the user's own values win, but for the process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if process == "child" else "0"
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    shares = [share_of_cores(tuple(cores), worker, num_workers) for worker in range(num_workers)] if cores else []
    ours = {
        "VLLM_LOGGING_LEVEL": "ERROR",
        # The automatic binding keeps one core for itself, which doubles a step on two cores.
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, own)) for own in shares),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    for name, value in ours.items():
        if _environment.get(name) == os.environ.get(name):  # unset, or set here for an earlier engine
            os.environ[name] = _environment[name] = value
