"""Every private name of vLLM that we use, and nothing else.

Three things of the CPU engine are undone here: linear weights that are dropped once they are packed, a
sampler function that needs a compiler at the first batch, and an adapter path that copies factors
for every token. One is added: calls that wait for a child engine fail when it dies.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from multiprocessing.connection import wait
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from zo_lightning.core.types import Layout
from zo_lightning.errors import EngineError
from zo_lightning.imports import lasting_objects

if TYPE_CHECKING:
    from vllm import LLM

SUPPORTED_VERSIONS = "0.32"
ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what max_lora_rank accepts

Product = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]  # of an input with a weight, plus a bias


def version_error(what: str) -> EngineError:
    """The error for a vLLM that lacks something this module relies on."""
    import vllm

    return EngineError(
        f"vLLM {vllm.__version__} has no {what}; zo-lightning supports vLLM {SUPPORTED_VERSIONS}.*: install that "
        "version or choose `backend=packed`"
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


@functools.cache
def import_llm() -> type[LLM]:
    """The engine of vLLM, imported so that the garbage collections of its start need not look at the import."""
    with lasting_objects():
        from vllm import LLM
    return LLM


def check_version() -> None:
    """Raise ``EngineError`` for a vLLM of another version."""
    import vllm

    if not vllm.__version__.startswith(f"{SUPPORTED_VERSIONS}."):
        raise EngineError(
            f"vLLM {vllm.__version__} is installed; zo-lightning supports {SUPPORTED_VERSIONS}.*: install that version "
            "or choose `backend=packed`"
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
    if not on_cpu():
        return
    linear_utils: Any = _module("vllm.model_executor.layers.utils")
    sampler: Any = _module("vllm.v1.sample.sampler")
    wrapper: Any = _require(_module("vllm.lora.punica_wrapper.punica_cpu"), "PunicaWrapperCPU")

    pack = _require(linear_utils, "dispatch_cpu_unquantized_gemm")
    if not hasattr(linear_utils, "zo_pack"):
        linear_utils.zo_pack = pack
        linear_utils.dispatch_cpu_unquantized_gemm = _pack_and_keep
    _require(sampler, "batched_count_greater_than")
    sampler.batched_count_greater_than = _count_not_less
    for name in ("update_metadata", "prefill_metadata"):
        _require(wrapper, name)
    if wrapper.update_metadata is not _update_metadata:
        wrapper.zo_update_metadata = wrapper.update_metadata
        wrapper.update_metadata = _update_metadata


def tolerate_llvmlite() -> None:
    """Before an engine starts in a process where numba is imported; vLLM's start would fail there. Idempotent."""
    dispatcher: Any = _module("vllm.triton_utils.dispatcher")
    rebind = _require(dispatcher, "_rebind_kernels")
    if rebind is not _rebind_past_llvmlite:
        dispatcher.zo_rebind_kernels = rebind
        dispatcher._rebind_kernels = _rebind_past_llvmlite


def _rebind_past_llvmlite(overrides: Any) -> None:
    """Let vLLM look through all modules for kernels, but not at objects of llvmlite that claim to have every name."""
    dispatcher: Any = _module("vllm.triton_utils.dispatcher")
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "llvmlite"}
    try:
        dispatcher.zo_rebind_kernels(overrides)
    finally:
        sys.modules.update(hidden)


def _pack_and_keep(layer: Any, remove_weight: bool) -> None:
    pack: Any = _module("vllm.model_executor.layers.utils")
    pack.zo_pack(layer, remove_weight=False)


def cpu_product(weight: torch.Tensor) -> Product:
    """The engine's own product with a weight [O, I], which it packs; the weight itself is not kept where it can."""
    linear_utils: Any = _module("vllm.model_executor.layers.utils")
    layer: Any = SimpleNamespace(weight=torch.nn.Parameter(weight, requires_grad=False))
    linear_utils.zo_pack(layer, remove_weight=True)
    return lambda inputs, bias: layer.cpu_linear(inputs, layer.weight, bias)


def _count_not_less(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return (x >= values).sum(-1)


def _update_metadata(self: Any, *args: Any, **kwargs: Any) -> None:
    self.zo_update_metadata(*args, **kwargs)
    starts, lengths, slots, *_ = self.prefill_metadata
    self.zo_runs = torch.stack((slots, starts, starts + lengths), dim=1)[slots >= 0].long().numpy()


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


class AdapterLayer(NamedTuple):
    """A linear of the engine that takes adapters, and the matrices that are fused into it."""

    layer: Any
    names: tuple[str, ...]

    @property
    def weight(self) -> torch.Tensor:
        """The base weight, of all matrices."""
        weight: torch.Tensor = _require(_require(self.layer, "base_layer"), "weight")
        return weight

    @property
    def runs(self) -> np.ndarray:
        """Which tokens of the running batch have an adapter: rows of (slot, first token, last token + 1). CPU only."""
        runs: np.ndarray = self.layer.punica_wrapper.zo_runs
        return runs

    def base(self, inputs: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The base's product, as the engine makes it."""
        output: torch.Tensor = self.layer._get_quant_method().apply(self.layer.base_layer, inputs, bias)
        return output

    def replace(self, apply: Product) -> None:
        """Let another function take the place of the product and the adapters' part."""
        for name in ("_apply_sync", "_get_quant_method", "punica_wrapper"):
            _require(self.layer, name)
        self.layer._apply_sync = lambda x, bias=None: apply(x, bias)

    def repack(self) -> None:
        """Tell a CPU engine that the base weight has changed."""
        _pack_and_keep(self.layer.base_layer, remove_weight=False)


def adapter_layers(worker: Any) -> list[AdapterLayer]:
    """Every linear that takes adapters, with the Hugging Face names of its matrices."""
    manager = _adapter_manager(worker)
    fused = _require(manager, "packed_modules_mapping")
    layers = []
    for name, layer in _require(manager, "modules").items():
        parent, _, leaf = name.rpartition(".")
        layers.append(AdapterLayer(layer, tuple(f"{parent}.{part}" for part in fused.get(leaf, [leaf]))))
    return layers


def on_cpu() -> bool:
    """Whether the engine computes on the CPU."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


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
    found = {}
    for adapted in adapter_layers(worker):
        layer, rows = adapted.layer, 0
        for name, right, left in zip(
            adapted.names, _require(layer, "lora_a_stacked"), _require(layer, "lora_b_stacked"), strict=True
        ):
            height = left.shape[2]
            found[name] = (right, left, adapted.weight[rows : rows + height])
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
