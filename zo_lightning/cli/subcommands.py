"""Programs whose first word says what to do: ``zo-bench step``, ``zo-replay verify``. The rest is Hydra's."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from zo_lightning.cli.errors import FAILED


def take_subcommand(usage: str, about: Mapping[str, str]) -> tuple[str, list[str]]:
    """The subcommand of the command line and its other words.

    Args:
        usage: the program and what follows, for people.
        about: what each subcommand does.

    Raises:
        SystemExit: after telling which there are, if it names none of them.
    """
    command, rest = split_command(sys.argv[1:])
    if command is not None and command in about:
        return command, rest
    asked = command is None and bool({"-h", "--help"} & set(rest))
    stream = sys.stdout if asked else sys.stderr
    if not asked:
        missing = "a subcommand is missing" if command is None else f"there is no subcommand `{command}`"
        print(f"error: {missing}; choose one of these", file=stream)
    print(f"Usage: {usage}\n", file=stream)
    width = max(map(len, about))
    for name, does in about.items():
        print(f"  {name:<{width}} {does}", file=stream)
    program = usage.split()[0]
    print(f"\n`{program} SUBCOMMAND --help` lists groups and keys, as in zo-train.", file=stream)
    raise SystemExit(0 if asked else FAILED)


def split_command(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The first word if it is neither a flag nor an override, and the rest.

    Examples:
        >>> split_command(["step", "rounds=3"])
        ('step', ['rounds=3'])
        >>> split_command(["--help"])
        (None, ['--help'])
    """
    if arguments and not arguments[0].startswith("-") and "=" not in arguments[0]:
        return arguments[0], list(arguments[1:])
    return None, list(arguments)


def with_override(arguments: Sequence[str], override: str) -> list[str]:
    """An override before the others: Hydra's parser takes them in one run only, on either side of the flags.

    Examples:
        >>> with_override(["--config-dir", "mine", "rounds=3"], "command=step")
        ['--config-dir', 'mine', 'command=step', 'rounds=3']
        >>> with_override(["--help"], "command=step")
        ['--help', 'command=step']
    """
    others = (i for i, argument in enumerate(arguments) if "=" in argument and not argument.startswith("-"))
    first = next(others, len(arguments))
    return [*arguments[:first], override, *arguments[first:]]
