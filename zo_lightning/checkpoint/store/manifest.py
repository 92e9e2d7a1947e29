"""The list of what a checkpoint is made of: written last, so that whatever it names is on the disk when it is."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, fields
from typing import Any

from zo_lightning.checkpoint.store.errors import ManifestError

FORMAT = 2
_NAME = re.compile(r"step-(\d{12,19})\.json")
_BLOCK = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A checkpoint without the content of its tensors, but the smallest.

    Attributes:
        step: completed steps.
        digest: of the live state, made by whoever saved it; a restore drill compares it with what was read back.
        code: version of the package that wrote it.
        tree: the checkpoint as JSON (``store/tree.py``).
        blocks: the blocks it needs, with their sizes in bytes.
        format: of this file.
    """

    step: int
    digest: str
    code: str
    tree: Any
    blocks: dict[str, int]
    format: int = FORMAT

    @property
    def name(self) -> str:
        """Of its file."""
        return manifest_name(self.step)

    def to_bytes(self) -> bytes:
        """One line of JSON, and below it the SHA-256 of the first.

        Raises:
            ManifestError: if ``from_bytes`` would not read it.
        """
        if (problem := self._problem(self.name)) is not None:
            raise ManifestError(problem)
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        return _sealed(json.dumps(content, separators=(",", ":"), allow_nan=False).encode())

    @classmethod
    def from_bytes(cls, name: str, data: bytes) -> Manifest:
        """Read what ``to_bytes`` made.

        Args:
            name: of the file, which must be the step's.
            data: its content.

        Raises:
            ManifestError: if a bit of it changed, it is not whole, or of another format.
        """
        body = data.partition(b"\n")[0]
        if data != _sealed(body):
            raise ManifestError("its checksum is not that of its content")
        # A checksum that fits does not make it one of ours: whatever it holds ends in the one error.
        try:
            manifest = cls(**json.loads(body, parse_constant=_refuse))
            problem = manifest._problem(name)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
            raise ManifestError(f"it is no manifest of a checkpoint ({error})") from error
        if problem:
            raise ManifestError(problem)
        return manifest

    def _problem(self, name: str) -> str | None:
        if self.format != FORMAT:
            return f"it has format {self.format}, this version reads {FORMAT}: load it with version {self.code}"
        if type(self.step) is not int or type(self.digest) is not str or type(self.code) is not str:
            return "step, digest and code are not a number and two texts"
        if self.step < 0 or self.name != name:
            return f"it is the manifest of step {self.step}"
        sound = all(_BLOCK.fullmatch(block) and type(size) is int and size > 0 for block, size in self.blocks.items())
        return None if sound else "its list of blocks is malformed"


def manifest_name(step: int) -> str:
    """The file name of a step's manifest.

    Examples:
        >>> manifest_name(7)
        'step-000000000007.json'
    """
    return f"step-{step:012d}.json"


def step_of(name: str) -> int | None:
    """The step of a manifest by its file name; none for another file.

    Examples:
        >>> step_of("step-000000000007.json"), step_of(".step-000000000007.json.42")
        (7, None)
    """
    found = _NAME.fullmatch(name)
    return int(found[1]) if found and manifest_name(int(found[1])) == name else None


def _sealed(body: bytes) -> bytes:
    return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of a manifest")
