"""Every private name of vLLM that we use, and nothing else.

Three things of the CPU engine are undone here: linear weights that vanish into a packed copy, a
sampler function that needs a compiler at the first batch, and an adapter path that copies factors
for every token. One is added: calls that wait for a child engine fail when it dies.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib import import_module
from multiprocessing.connection import wait
from typing import Any

import torch
from torch.nn.functional import linear

from zo_lightning.backends.vllm import cpu_lora
from zo_lightning.core.types import Layout
from zo_lightning.errors import EngineError

SUPPORTED_VERSIONS = "0.32"
ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what max_lora_rank accepts


def version_error(what: str) -> EngineError:
    """The error for a vLLM that lacks something this module relies on."""
    import vllm

    return EngineError(
        f"vLLM {vllm.__version__} has no {what}; zo-lightning supports vLLM {SUPPORTED_VERSIONS}.*: install that "
        "version or choose `backend=dense`"
    )


def _require(owner: Any, name: str) -> Any:
    if not hasattr(owner, name):
        raise version_error(f"{getattr(owner, '__name__', type(owner).__name__)}.{name}")
    return getattr(owner, name)


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise version_error(f"module {name} ({error})") from error


def check_version() -> None:
    """Raise ``EngineError`` for a vLLM of another version."""
    import vllm

    if not vllm.__version__.startswith(f"{SUPPORTED_VERSIONS}."):
        raise EngineError(
            f"vLLM {vllm.__version__} is installed; zo-lightning supports {SUPPORTED_VERSIONS}.*: install that version "
            "or choose `backend=dense`"
        )


def dead_error() -> type[Exception]:
    """What vLLM raises when its engine has died."""
    error: type[Exception] = _require(_module("vllm.v1.engine.exceptions"), "EngineDeadError")
    return error


def engine_core(llm: Any) -> Any:
    """The client of an engine's core."""
    return _require(_require(llm, "llm_engine"), "engine_core")


def shut_down(llm: Any) -> None:
    """End an engine and free what it holds."""
    engine_core(llm).shutdown()


def clean_up_failed_start() -> None:
    """Free what an engine leaves in this process when it fails to start; the next one would stumble over it."""
    _require(_module("vllm.distributed.parallel_state"), "cleanup_dist_env_and_memory")()


def install_cpu_replacements() -> None:
    """Replace the three CPU parts in this process; does nothing on other platforms. Idempotent.

    Raises:
        EngineError: if vLLM lacks one of them.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    linear_utils: Any = _module("vllm.model_executor.layers.utils")
    sampler: Any = _module("vllm.v1.sample.sampler")
    wrapper: Any = _require(_module("vllm.lora.punica_wrapper.punica_cpu"), "PunicaWrapperCPU")

    _require(linear_utils, "dispatch_cpu_unquantized_gemm")
    linear_utils.dispatch_cpu_unquantized_gemm = _keep_weight
    _require(sampler, "batched_count_greater_than")
    sampler.batched_count_greater_than = _count_not_less
    for name in ("update_metadata", "prefill_metadata"):
        _require(wrapper, name)
    if wrapper.update_metadata is not _update_metadata:
        wrapper.zo_update_metadata = wrapper.update_metadata
        wrapper.update_metadata = _update_metadata


def _keep_weight(layer: Any, remove_weight: bool) -> None:
    layer.cpu_linear = linear


def _count_not_less(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return (x >= values).sum(-1)


def _update_metadata(self: Any, *args: Any, **kwargs: Any) -> None:
    self.zo_update_metadata(*args, **kwargs)
    self.zo_runs = cpu_lora.token_runs(self)


def fail_when_dead(client: Any) -> None:
    """Let calls that wait for a child engine fail once its process is gone; vLLM's client would wait for ever.

    Args:
        client: vLLM's client of an engine in a child process.

    Raises:
        EngineError: if vLLM lacks what this needs.
    """
    dead = dead_error()
    resources, outputs, results = (_require(client, n) for n in ("resources", "outputs_queue", "utility_results"))
    _require(resources, "engine_dead")
    processes = _require(_require(resources, "engine_manager"), "processes")

    def watch() -> None:
        wait([process.sentinel for process in processes])
        resources.engine_dead = True  # first: a call that begins from here on fails by itself
        outputs.put(dead())
        for result in list(results.values()):
            if not result.done():
                result.set_exception(dead())

    threading.Thread(target=watch, name="zo-engine-watch", daemon=True).start()


def pack_cpu_adapters(worker: Any) -> None:
    """Let every adapter layer of a CPU worker use packed factors; does nothing on other platforms."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for layer in _require(_adapter_manager(worker), "modules").values():
        for name in ("_apply_lora_to_output", "lora_a_stacked", "lora_b_stacked", "punica_wrapper"):
            _require(layer, name)
        layer._apply_lora_to_output = cpu_lora.PackedFactors(layer, layer.punica_wrapper).add


def register_adapters(worker: Any, count: int) -> list[int]:
    """Register and pin one zero adapter for each parameter point.

    An adapter that is not pinned could be evicted and come back with its factors silently zero.

    Returns:
        The stacked-tensor slot of adapters 1..count.
    """
    manager = _adapter_manager(worker)
    for name in ("create_dummy_lora", "add_adapter", "pin_adapter", "lora_index_to_id"):
        _require(manager, name)
    for adapter in range(1, count + 1):
        manager.add_adapter(manager.create_dummy_lora(adapter, 1, {}))
        manager.pin_adapter(adapter)
    return [manager.lora_index_to_id.index(adapter) for adapter in range(1, count + 1)]


def _adapter_manager(worker: Any) -> Any:
    return _require(_require(_require(worker, "model_runner"), "lora_manager"), "_adapter_manager")


def adapter_slices(worker: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Where each matrix lives in the engine, by Hugging Face module name.

    Returns:
        ``name -> (right [slots, 1, max rank, cols], left [slots, 1, rows, max rank], weight [rows, cols])``;
        the weight is a view of the base layer's rows.
    """
    manager = _adapter_manager(worker)
    packed = _require(manager, "packed_modules_mapping")
    found = {}
    for name, layer in _require(manager, "modules").items():
        parent, _, leaf = name.rpartition(".")
        rows = 0
        for part, right, left in zip(
            packed.get(leaf, [leaf]), _require(layer, "lora_a_stacked"), _require(layer, "lora_b_stacked"), strict=True
        ):
            height = left.shape[2]
            found[f"{parent}.{part}"] = (right, left, _require(layer, "base_layer").weight[rows : rows + height])
            rows += height
    return found


def tensor_parallel(worker: Any) -> tuple[int, int]:
    """Rank and number of the workers that share a model."""
    size = _require(_require(worker, "parallel_config"), "tensor_parallel_size")
    return _require(_module("vllm.distributed"), "get_tensor_model_parallel_rank")(), size


def base_parameters(worker: Any) -> Iterator[tuple[str, torch.Tensor, int]]:
    """Every base parameter of a worker once: name, tensor and how many of its elements are counted here.

    Over all workers each element of the model counts once: what they all hold at the first of them. An embedding is
    padded to a multiple of 64 rows; the padding is digested but not counted.
    """
    rank, _ = tensor_parallel(worker)
    model = _require(_require(worker, "model_runner"), "get_model")()
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        owner, _, leaf = name.rpartition(".")
        yield name, parameter, _own_elements(modules[owner], leaf, parameter, rank)


def _own_elements(owner: Any, leaf: str, parameter: torch.Tensor, rank: int) -> int:
    linear_layers: Any = _module("vllm.model_executor.layers.linear")
    width = parameter[0].numel() if parameter.ndim else 1
    if hasattr(owner, "org_vocab_size"):
        return int(_require(_require(owner, "shard_indices"), "num_org_elements") * width)
    if rank == 0:
        return parameter.numel()
    if isinstance(owner, _require(linear_layers, "QKVParallelLinear")) and rank % owner.num_kv_head_replicas:
        return int(owner.num_heads * owner.head_size * width)  # its keys and values are counted at a neighbour
    split = isinstance(owner, _require(linear_layers, "ColumnParallelLinear")) or (
        isinstance(owner, _require(linear_layers, "RowParallelLinear")) and leaf == "weight"
    )
    return parameter.numel() if split else 0


def fused_targets(layout: Layout) -> dict[str, None]:
    """The engine's names of the linears that hold a layout's matrices, in order and once each.

    Without this restriction the logits processor would get an adapter too, which fails on CPU.
    """
    fused = {
        "q_proj": "qkv_proj",
        "k_proj": "qkv_proj",
        "v_proj": "qkv_proj",
        "gate_proj": "gate_up_proj",
        "up_proj": "gate_up_proj",
    }
    leaves = (matrix.name.rpartition(".")[2] for matrix in layout.matrices)
    return dict.fromkeys(fused.get(leaf, leaf) for leaf in leaves)
