"""Fixtures that several test folders share."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# Before torch is imported: threads that spin while they wait crawl beside another busy process.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from tests.wheels import ROOT, build_wheel
from zo_lightning.core.types import Example, Layout, MatrixSpec

if TYPE_CHECKING:
    from tests.backends import Opened


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes (``-n 2``), each file is one process's, as are all tests of vLLM's engines, and others."""
    for item in items:
        row = item.callspec.params.get("opened") if hasattr(item, "callspec") else None
        engine = "vllm" if row is not None and row.backend == "vllm" else "torch"
        item.add_marker(pytest.mark.xdist_group(str(item.path) if row is None else f"engines of {engine}"))


@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Lightning ignores Ctrl-C after an interrupted run."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """A command that ran in this process leaves handlers behind, whose streams pytest closes."""
    loggers = [logging.getLogger(name) for name in (None, "zo_lightning")]
    before = [list(logger.handlers) for logger in loggers]
    yield
    for logger, kept in zip(loggers, before, strict=True):
        for handler in [handler for handler in logger.handlers if handler not in kept]:
            logger.removeHandler(handler)


@pytest.fixture
def small_layout() -> Layout:
    """Two matrices, 39 parameters: enough for a quadratic."""
    matrices = (MatrixSpec(name="a", rows=6, cols=4), MatrixSpec(name="b", rows=5, cols=3))
    return Layout(model="quadratic", matrices=matrices, num_parameters=39)


@pytest.fixture
def small_examples() -> tuple[Example, ...]:
    """50 examples with two options of one and two tokens."""
    return tuple(Example(prompt=(i, i + 1, 3), options=((100,), (200, 201)), label=i % 2) for i in range(50))


@pytest.fixture
def two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the tensors in ``stores.small_tree``, the one that changes has a block of its own, the other a pack."""
    monkeypatch.setattr("zo_lightning.checkpoint.store.packs.ROW_BYTES", 1500)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as a wheel, built where a machine's own settings lie about, which it must not ship."""
    names = ("zo_lightning", "hydra_plugins", "pyproject.toml", "README.md", "LICENSE")
    folder = tmp_path_factory.mktemp("wheel")
    own = folder / "zo_lightning" / "conf" / "local" / "default.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("seed: 1\n")
    return build_wheel([ROOT / name for name in names], folder)


@pytest.fixture(scope="session")
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    """The open backend of a row, which parametrises this fixture; ``tests/backends.py`` says why one at a time."""
    from tests.backends import Opened, one_thread

    with one_thread():
        subject = Opened(request.param)
        yield subject
        subject.backend.close()


@pytest.fixture
def subject(opened: Opened) -> Opened:
    """The row's open backend, back at version 0."""
    return opened.reset()
