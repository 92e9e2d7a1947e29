"""Every flipped bit and every truncation of a whole journal and a whole checkpoint: none is accepted silently.

Accepted silently means read without an error and without a complaint, and something else than what was written.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from zo_lightning.checkpoint.journal import read_journal
from zo_lightning.checkpoint.store import Store
from zo_lightning.drill.report import Findings
from zo_lightning.drill.specimens import HeldFiles, tree, write_journal
from zo_lightning.errors import ZOError

Read = Callable[[], tuple[str, bool]]  # what was read, as text, and whether something was complained of

_STEPS = 7
_ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**70,
    1e308,
    "",
    "x" * 300,
    [],
    {},
    [[]],
    {"tensor": {}},
    {"float": "zz"},
    {"dict": [[1]]},
)


def drill(folder: Path, *, fuzzed: int, seed: int) -> Findings:
    """Damage a journal and a checkpoint in every way of these kinds.

    Args:
        folder: gets both, undamaged.
        fuzzed: manifests with valid checksums and odd content.
        seed: of these.
    """
    found = Findings({"flips_tried": 0, "flips_accepted": 0, "manifests_fuzzed": 0, "crashes": 0})
    for name, write, read in (("journal", _write_journal, _read_journal), ("store", _write_store, _read_store)):
        place = folder / name
        write(place)
        files = HeldFiles.of(place)
        found.add(_damaged(files, partial(read, files, place)))
    found.add(_fuzzed(folder / "store", fuzzed, seed))
    return found


def _write_journal(place: Path) -> None:
    write_journal(place, range(_STEPS))


def _read_journal(files: HeldFiles, place: Path) -> tuple[str, bool]:
    found = read_journal(place, files=files)
    return repr(found.entries), bool(found.problems)


def _write_store(place: Path) -> None:
    Store([place]).save(1, tree(1), "digest")


def _read_store(files: HeldFiles, place: Path) -> tuple[str, bool]:
    loaded = Store([place], files=files).load()
    return repr((loaded.step, loaded.digest, _exact(loaded.tree))), bool(loaded.complaints)


def _exact(value: Any) -> Any:
    """A tree with tensors as all of their values, so that its text says everything."""
    if isinstance(value, dict):
        return {key: _exact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_exact(item) for item in value]
    return (str(value.dtype), value.tolist()) if hasattr(value, "tolist") else value


def _damaged(files: HeldFiles, read: Read) -> Findings:
    truth, complained = read()
    assert not complained
    counts, faults = {"flips_tried": 0, "flips_accepted": 0}, []
    for path, whole in list(files.content.items()):
        assert whole is not None
        for what, data in _changes(whole):
            files.content[path] = data
            counts["flips_tried"] += 1
            if _accepted(read, truth):
                counts["flips_accepted"] += 1
                faults.append(f"{path}: {what} is accepted without a word")
        files.content[path] = whole
    return Findings(counts, faults)


def _accepted(read: Read, truth: str) -> bool:
    try:
        text, complained = read()
    except ZOError:
        return False
    return text != truth and not complained


def _changes(whole: bytes) -> Iterator[tuple[str, bytes]]:
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit % 8} of byte {bit // 8} flipped", bytes(flipped)
    for size in range(len(whole)):
        yield f"cut to {size} bytes", whole[:size]


def _fuzzed(place: Path, number: int, seed: int) -> Findings:
    """Manifests whose checksum is right and whose content is not: any error but a clear one is a crash."""
    chance, files = random.Random(seed), HeldFiles.of(place)
    (path,) = [path for path in files.content if path.suffix == ".json"]
    whole = files.content[path]
    assert whole is not None
    content = json.loads(whole.split(b"\n")[0])
    counts, faults = {"manifests_fuzzed": number, "crashes": 0}, []
    for attempt in range(number):
        changed = json.loads(json.dumps(content))
        for _ in range(chance.randint(1, 3)):
            _spoil(changed, chance)
        body = json.dumps(changed, separators=(",", ":")).encode()
        files.content[path] = body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"
        try:
            _read_store(files, place)
        except ZOError:
            continue
        except Exception as error:  # whatever it is, it is the finding
            counts["crashes"] += 1
            kept = place / f"manifest-{seed}-{attempt}.json"
            kept.write_bytes(files.content[path] or b"")
            faults.append(f"{kept} (seed {seed}) ends in {type(error).__name__}: {error}")
    return Findings(counts, faults)


def _spoil(content: Any, chance: random.Random) -> None:
    """Put something odd at a random place of a JSON."""
    while True:
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        if not keys:
            return
        key = chance.choice(keys)
        inner = content[key]
        if not isinstance(inner, dict | list) or not inner or chance.random() < 0.2:
            if chance.random() < 0.15:
                del content[key]
            else:
                content[key] = copy.deepcopy(chance.choice(_ODD))
            return
        content = inner
