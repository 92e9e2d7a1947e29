"""A method names itself, crosses process borders as plain values, and refuses what cannot run before anything opens."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from zo_lightning.core.method import Method, from_recipe, to_recipe
from zo_lightning.core.types import BankSpec, Capabilities
from zo_lightning.directions import LowRank
from zo_lightning.errors import ConfigError
from zo_lightning.estimators import Spsa
from zo_lightning.queries import Antithetic
from zo_lightning.updates import Sgd

ABLE = Capabilities(max_points=2, max_rank=16, provides=frozenset({"low_rank", "merge", "score"}))
BANK = BankSpec(rank=2, capacity=16)
METHOD = Method(
    direction=LowRank(rank=2, refresh_every=10, scale="1/r", cycle=8),
    query=Antithetic(eps=1e-3),
    estimator=Spsa(),
    update=Sgd(lr=1e-6),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSided(Antithetic):
    """A query without pairs."""

    max_points: int = field(default=9, init=False)
    provides: frozenset[str] = field(default=frozenset({"centre"}), init=False)


def test_what_fits_is_accepted() -> None:
    METHOD.check(ABLE, BANK, max_steps=1000)
    METHOD.check(ABLE, replace(BANK, policy="merge"), max_steps=1000)
    METHOD.check(ABLE, replace(BANK, policy="refuse"), max_steps=80)  # eight stages, eight slots
    METHOD.check(replace(ABLE, probe_columns=True), replace(BANK, capacity=14), max_steps=1000)


@pytest.mark.parametrize(
    ("capabilities", "bank", "key", "why"),
    [
        ({}, {"capacity": 18}, "bank.capacity", "18 columns.*probes.*0.*16"),
        ({"probe_columns": True}, {}, "bank.capacity", "16 columns.*probes.*2.*16"),
        ({}, {"capacity": 15}, "bank.capacity", "multiple of `direction.rank`=2"),
        ({}, {"capacity": 0}, "bank.capacity", "positive multiple"),
        ({"provides": frozenset({"low_rank", "score"})}, {"policy": "merge"}, "backend", "merge"),
        ({"provides": frozenset({"score"})}, {}, "backend", "low_rank"),
        ({"max_points": 1}, {}, "backend.max_points", "2 points at once.*most 1"),
        ({}, {"capacity": 14, "policy": "refuse"}, "bank.capacity", "8 stages.*holds 7.*to 16"),
    ],
)
def test_what_cannot_run_is_refused_by_the_key_to_change(
    capabilities: dict[str, Any], bank: dict[str, Any], key: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        METHOD.check(replace(ABLE, **capabilities), replace(BANK, **bank), max_steps=80)
    assert f"`{key}`" in str(error.value)


def test_an_estimator_and_a_query_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Spsa needs antithetic pairs, which query OneSided.*`estimator` or `query`"):
        replace(METHOD, query=OneSided(eps=1e-3))


@pytest.mark.parametrize("part", [METHOD.direction, METHOD.query, METHOD.estimator, METHOD.update, BANK])
def test_a_part_comes_back_from_its_recipe(part: Any) -> None:
    recipe = to_recipe(part)
    assert from_recipe(recipe) == part
    assert from_recipe(pickle.loads(pickle.dumps(recipe))) == part


def test_the_digest_names_the_method_and_nothing_else() -> None:
    assert METHOD.digest == replace(METHOD).digest
    others = [
        replace(METHOD, direction=replace(METHOD.direction, rank=4)),  # type: ignore[type-var]
        replace(METHOD, direction=replace(METHOD.direction, refresh_update="released")),  # type: ignore[type-var]
        replace(METHOD, query=Antithetic(eps=2e-3)),
        replace(METHOD, update=Sgd(lr=2e-6)),
    ]
    assert len({METHOD.digest, *(other.digest for other in others)}) == 1 + len(others)
