"""The doctests of modules that load vLLM are left out where it is not installed."""

from importlib.util import find_spec

_NEED_VLLM = [f"zo_lightning/backends/vllm/{name}.py" for name in ("cpu_lora", "internals", "worker")]
collect_ignore_glob = [] if find_spec("vllm") else _NEED_VLLM
