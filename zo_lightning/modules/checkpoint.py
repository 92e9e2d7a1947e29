"""What a run adds to a Lightning checkpoint, and the check that it is loaded into the run that it fits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from zo_lightning.core.method import Method, to_recipe
from zo_lightning.errors import ConfigError

KEY = "zo_lightning"  # the one key of ours in a checkpoint
_ROLES = ("direction", "query", "estimator", "update")
_DERIVED = {"cycle"}  # follows from the bank's capacity, which may grow when a run goes on


def describe(method: Method) -> dict[str, Any]:
    """The method's digest and four parts as plain values."""
    return {"digest": method.digest, **_parts(method)}


def _parts(method: Method) -> dict[str, dict[str, Any]]:
    recipes = {role: to_recipe(getattr(method, role)) for role in _ROLES}
    return {role: {"kind": kind, **dict(fields)} for role, (kind, fields) in recipes.items()}


def lasting_digest(method: Method) -> str:
    """Digest of what stays of a method when its run goes on."""
    lasting = {role: {k: v for k, v in part.items() if k not in _DERIVED} for role, part in _parts(method).items()}
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:16]


def differences(saved: dict[str, Any], current: dict[str, Any]) -> Iterator[str]:
    """What differs between two descriptions, by config key.

    Examples:
        >>> sgd = {"kind": "Sgd", "lr": 0.1}
        >>> other = {role: {"kind": "x"} for role in ("direction", "query", "estimator")}
        >>> list(differences({**other, "update": sgd}, {**other, "update": {**sgd, "lr": 0.2}}))
        ['`update.lr`=0.1, not 0.2']
    """
    for role in _ROLES:
        old, new = saved[role], current[role]
        if old["kind"] != new["kind"]:
            yield f"`{role}`={old['kind'].split(':')[-1]}, not {new['kind'].split(':')[-1]}"
            continue
        for name in (old.keys() | new.keys()) - _DERIVED:
            if old.get(name) != new.get(name):
                yield f"`{role}.{name}`={old.get(name)}, not {new.get(name)}"


def check_method(saved: dict[str, Any], method: Method) -> None:
    """Refuse a checkpoint of another method.

    Raises:
        ConfigError: with every key that differs.
    """
    found = "; ".join(sorted(differences(saved, describe(method))))
    if found:
        raise ConfigError(f"the checkpoint was trained with {found}: set it so, or leave `ckpt_path` out")
