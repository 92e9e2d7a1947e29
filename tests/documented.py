"""The commands that README and docs show: console blocks, and commands in the cells of tables and in the text.

A command that this machine cannot run says so where it stands: the comment ``<!-- needs: a GPU -->`` before a block, or
"(needs a GPU)" in the row of a table.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "multirun" / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
PROGRAM = r"(?:[A-Z_]+=\S+ )?(?:zo-[a-z-]+|python|make|pip|pytest|vllm|tensorboard)"
_BLOCK = re.compile(r"(?:<!-- needs: (?P<needs>[^>]*) -->\n)?```console\n(?P<body>.*?)```", re.DOTALL)
_INLINE = re.compile(rf"`(?P<command>{PROGRAM} [^`]+)`")


@dataclass(frozen=True)
class Command:
    """A command as it stands on a page, and what it needs that may not be here."""

    page: str
    text: str
    needs: str | None

    @property
    def words(self) -> list[str]:
        """As a shell splits it."""
        return shlex.split(self.text, comments=True)


def commands() -> Iterator[Command]:
    """All of them, page after page."""
    for page in PAGES:
        yield from _commands(page.relative_to(ROOT).as_posix(), page.read_text())


def python_blocks() -> Iterator[str]:
    """The Python of all pages."""
    for page in PAGES:
        yield from re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def _commands(page: str, text: str) -> Iterator[Command]:
    for block in _BLOCK.finditer(text):
        joined = block["body"].replace("\\\n", " ")
        for line in joined.splitlines():
            if line.startswith("$ "):
                yield Command(page, line[2:].strip(), block["needs"])
    for line in re.sub(r"```.*?```", "", text, flags=re.DOTALL).splitlines():
        needs = re.search(r"\(needs ([^)]*)\)", line)
        for found in _INLINE.finditer(line):
            if found["command"] in ("python train.py", "python eval.py"):  # the program, by name
                continue
            yield Command(page, found["command"], needs[1] if needs else None)
