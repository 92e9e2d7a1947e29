"""The main backend: real vLLM, with adapters as parameter points."""

from zo_lightning.backends.vllm.engine import VllmBackend

__all__ = ["VllmBackend"]
