"""The type of the base weights."""

from __future__ import annotations

from zo_lightning.errors import ConfigError

DTYPES = ("auto", "float32", "bfloat16", "float16")


def choose_dtype(dtype: str, *, on_gpu: bool) -> str:
    """What ``backend.dtype`` means on this machine: ``auto`` is bfloat16 on GPU and float32 on CPU.

    Raises:
        ConfigError: for an unknown type.

    Examples:
        >>> choose_dtype("auto", on_gpu=False)
        'float32'
    """
    if dtype not in DTYPES:
        raise ConfigError(f"`backend.dtype` must be one of {', '.join(DTYPES)}, not {dtype}")
    if dtype != "auto":
        return dtype
    return "bfloat16" if on_gpu else "float32"
