"""From the configuration's flat ``goodput`` to a scenario of the library."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import Any

from omegaconf import DictConfig, OmegaConf

from zo_lightning.errors import ConfigError
from zo_lightning.goodput.failures import Failures, read_trace
from zo_lightning.goodput.model import Job
from zo_lightning.goodput.scenario import Scenario, Tier


def scenario_of(config: DictConfig) -> Scenario:
    """The scenario that ``goodput`` and ``legacy_credit`` describe; interval and target are still to be chosen.

    Raises:
        ConfigError: for a number out of its range, or a drain that is longer than the run.
    """
    given: dict[str, Any] = OmegaConf.to_container(config.goodput, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    given = {key: value.value if isinstance(value, Enum) else value for key, value in given.items()}
    given["trace"] = () if given["trace"] is None else read_trace(given["trace"])
    job, failures = _taken(given, Job), _taken(given, Failures)
    tiers = tuple(Tier(**tier) for tier in given.pop("tiers"))
    scenario = Scenario(
        job=Job(**job), failures=Failures(**failures), tiers=tiers, k=1, legacy_credit=config.legacy_credit, **given
    )
    drain = scenario.job.drain_steps * scenario.step_seconds / 86_400
    if config.days is not None and drain > config.days:
        raise ConfigError(
            f"`goodput.drain_steps`={scenario.job.drain_steps}: a drain takes {drain:.3g} days, longer than the run of "
            f"`days`={config.days:g}: set fewer steps or more days"
        )
    return scenario


def _taken(given: dict[str, Any], kind: type) -> dict[str, Any]:
    """What of the keys belongs to a dataclass, taken out of them."""
    return {field.name: given.pop(field.name) for field in fields(kind)}
