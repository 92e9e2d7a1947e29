"""Imports of the large libraries without work that nobody needs, which was a quarter of the way to the first step."""

from __future__ import annotations

import atexit
import functools
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

# Two of scipy's modules that take a second each, and all that is read from them on import: torchmetrics looks whether
# one name is there, transformers binds a function of its detection losses, vLLM the module for its audio models.
_LATER = {"scipy.signal": "hamming", "scipy.optimize": "linear_sum_assignment"}


@contextmanager
def lasting_objects() -> Iterator[None]:
    """For first imports: the million objects that they make stay, so no collection of garbage looks at them.

    Use it once for each library: what is garbage by then would stay, too.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.unregister(gc.unfreeze)
        atexit.register(gc.unfreeze)  # bindings of C++ would report as leaked what nobody collects at the end
        if enabled:
            gc.enable()


@functools.cache
def import_lightning() -> None:
    """Import Lightning, and leave ``scipy`` for when it is used."""
    if find_spec("scipy") is not None:
        for name, function in _LATER.items():
            sys.modules.setdefault(name, LaterModule(name, function))
    with lasting_objects():
        import lightning.pytorch  # noqa: F401


class LaterModule(ModuleType):
    """Stands for a module until something of it is used, then the module itself takes the place.

    Args:
        name: of the module.
        function: one of its functions, which may be looked up and bound without the module; calling it is a use.
    """

    def __init__(self, name: str, function: str) -> None:
        super().__init__(name)
        spec = find_spec(name)
        assert spec is not None
        self.__spec__, self.__file__, self.__path__ = spec, spec.origin, list(spec.submodule_search_locations or ())
        self.__dict__[function] = lambda *args, **kwargs: self.__getattr__(function)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # who walks through all modules asks for these
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)
