"""What a benchmark works on. Parts that take time are made when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zo_lightning.core.method import Method
from zo_lightning.core.roles import Backend
from zo_lightning.core.types import BankSpec, Example, Score, Workload
from zo_lightning.errors import DataError

if TYPE_CHECKING:
    from zo_lightning.data import ExampleDataModule
    from zo_lightning.models import PreparedModel

Examples = tuple[Example, ...]


@dataclass(frozen=True, kw_only=True)
class Workbench:
    """The parts of a configured run and how to measure it.

    Args:
        model_name: the model's, for titles.
        task_name: the task's, likewise.
        method: direction, query, estimator and update.
        bank: size and policy of the factor bank.
        objective: what is scored.
        seed: of directions and of the order of the data.
        batch_size: examples of a step.
        rounds: rounds that count.
        warm_up: rounds before them that do not.
        make_backend: makes the backend of a name, with changed settings; it is not open.
        make_model: has the model on the local disk.
        find_config: has the folder of the model's config.json, which may hold no weights.
        make_data: has the task's examples, in the model's tokens.
        tasks: the training examples of every task whose data are at hand, by name.
        ranks: bank columns to compare.
        points: numbers of points to compare.
        starts: fresh processes to time.
        overrides: the command line's, for those processes.
        dtype: of the backend, as configured.
        others: names of further backends to compare with.
    """

    model_name: str
    task_name: str
    method: Method
    bank: BankSpec
    objective: Score
    seed: int
    batch_size: int
    rounds: int
    warm_up: int
    make_backend: Callable[..., Backend]
    make_model: Callable[[], PreparedModel]
    find_config: Callable[[], Path]
    make_data: Callable[[PreparedModel], ExampleDataModule]
    tasks: Mapping[str, Callable[[PreparedModel], Examples]]
    ranks: Sequence[int]
    points: Sequence[int]
    starts: int
    overrides: Sequence[str]
    dtype: str
    others: frozenset[str]

    @cached_property
    def model(self) -> PreparedModel:
        """The model, on the local disk."""
        return self.make_model()

    @cached_property
    def config_folder(self) -> Path:
        """A folder with the model's config.json."""
        return self.find_config()

    @cached_property
    def data(self) -> ExampleDataModule:
        """The configured task."""
        return self.make_data(self.model)

    @cached_property
    def batches(self) -> tuple[Examples, ...]:
        """The batches of the configured task."""
        return self.batches_of(self.data.train)

    def batches_of(self, examples: Examples) -> tuple[Examples, ...]:
        """The batches of an epoch as training sees them, without a smaller last one.

        Raises:
            DataError: if there are fewer examples than a batch has.
        """
        from zo_lightning.data import ExampleLoader

        loader = ExampleLoader(examples, self.batch_size, seed=self.seed, shuffle=True)
        whole = tuple(batch.examples for batch in loader if len(batch.examples) == self.batch_size)
        if not whole:
            raise DataError(f"there are fewer training examples than `data.batch_size`={self.batch_size}")
        return whole

    def batch(self, number: int) -> Examples:
        """The batch of a round; after the last one they come round again."""
        return self.batches[number % len(self.batches)]

    def has(self, name: str) -> bool:
        """Whether a further backend takes part."""
        return name in self.others

    @contextmanager
    def opened(
        self, name: str, *, bank: BankSpec | None = None, workloads: Sequence[Workload] | None = None, **changes: Any
    ) -> Iterator[Any]:
        """A backend of this name, open, which is closed at the end.

        Args:
            name: an option of the group ``backend``.
            bank: another one than the workbench's.
            workloads: calls to come; None for those of training.
            **changes: settings of the backend other than the configured ones.
        """
        backend = self.make_backend(name, **changes)
        if workloads is None:
            workloads = self.data.workloads(self.method.query.max_points)
        backend.open(self.model.layout, self.method.direction, self.method.update, bank or self.bank, workloads)
        try:
            yield backend
        finally:
            backend.close()
