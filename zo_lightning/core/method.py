"""A method is a choice of four parts; this module checks the choice and gives it a name."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
from dataclasses import dataclass
from typing import Any

from zo_lightning.core.roles import Direction, Estimator, Query, Update
from zo_lightning.core.types import BankSpec, Capabilities
from zo_lightning.errors import ConfigError

Recipe = tuple[str, tuple[tuple[str, Any], ...]]


def to_recipe(part: Any) -> Recipe:
    """A part as plain values that cross process borders: its class and its init fields."""
    kind = type(part)
    fields = tuple((f.name, getattr(part, f.name)) for f in dataclasses.fields(part) if f.init)
    return f"{kind.__module__}:{kind.__qualname__}", fields


def from_recipe(recipe: Recipe) -> Any:
    """Rebuild a part from its recipe."""
    path, fields = recipe
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)(**dict(fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """Direction, Query, Estimator and Update that fit together.

    Raises:
        ConfigError: if the estimator needs observations that the query does not provide.
    """

    direction: Direction
    query: Query
    estimator: Estimator
    update: Update

    def __post_init__(self) -> None:
        missing = self.estimator.needs - self.query.provides
        if missing:
            raise ConfigError(
                f"estimator {type(self.estimator).__name__} needs {', '.join(sorted(missing))}, which query "
                f"{type(self.query).__name__} does not provide: choose another `estimator` or `query`"
            )

    @property
    def digest(self) -> str:
        """Identifies the method: the four parts with their settings."""
        recipes = [to_recipe(part) for part in (self.direction, self.query, self.estimator, self.update)]
        return hashlib.sha256(repr(recipes).encode()).hexdigest()[:16]

    def check(self, capabilities: Capabilities, bank: BankSpec, *, max_steps: int) -> None:
        """Refuse, before anything is opened, what the backend cannot run.

        Raises:
            ConfigError: with the key to change.
        """
        needs = self.direction.needs | ({"merge"} if bank.policy == "merge" else set())
        missing = needs - capabilities.provides
        if missing:
            raise ConfigError(
                f"this `backend` cannot run {', '.join(sorted(missing))}, which direction "
                f"{type(self.direction).__name__} with bank.policy={bank.policy} needs: choose another `backend`"
            )
        if self.query.max_points > capabilities.max_points:
            raise ConfigError(
                f"query {type(self.query).__name__} evaluates {self.query.max_points} points at once, the backend at "
                f"most {capabilities.max_points}: raise `backend.max_points`"
            )
        if bank.capacity < bank.rank or bank.capacity % bank.rank:
            raise ConfigError(
                f"`bank.capacity`={bank.capacity} must be a positive multiple of `direction.rank`={bank.rank}"
            )
        probes = bank.rank if capabilities.probe_columns else 0
        if bank.capacity + probes > capabilities.max_rank:
            raise ConfigError(
                f"bank ({bank.capacity} columns) plus probes ({probes}) exceed the engine's {capabilities.max_rank} "
                "rank columns: lower `bank.capacity`; with `bank.policy=cyclic` the run reuses them"
            )
        stages = -(-max_steps // self.direction.refresh_every)
        if bank.policy == "refuse" and bank.num_slots < stages:
            raise ConfigError(
                f"{max_steps} steps need {stages} stages, the bank holds {bank.num_slots}: raise `bank.capacity` to "
                f"{stages * bank.rank} or set `bank.policy=cyclic`"
            )
