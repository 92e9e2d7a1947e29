"""The worker's doctests are left out where vLLM is not installed: its class derives from one of vLLM's."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("vllm") else ["zo_lightning/backends/vllm/worker.py"]
