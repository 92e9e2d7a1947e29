"""What all failures share: a name, and the moment at which one strikes."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from zo_lightning.errors import ConfigError


class Moment(NamedTuple):
    """Where a run is."""

    step: int  # steps done
    seconds: float  # since training began in this process
    byte: int  # written through the faulty files of this process


@dataclass(kw_only=True)
class Fault:
    """A failure that strikes once in a run: at a step, or at the first chance after it.

    With none of the three triggers, the step is drawn with the seed from the run's length.

    Args:
        step: steps that are done when it strikes.
        seconds: of training in this process.
        byte: written through the faulty files of this process.
        last_step: the run's length, for a drawn step; unknown where nothing limits the steps.
        seed: of all that is drawn.

    Raises:
        ConfigError: for more than one trigger, or none in a run without a length.
    """

    step: int | None = None
    seconds: float | None = None
    byte: int | None = None
    last_step: int | None = None
    seed: int = 0
    trigger: Moment = field(init=False)

    needs_trigger: ClassVar[bool] = True  # a step is drawn where none is given
    lasts: ClassVar[bool] = False  # goes on once it has begun, in a restarted run too

    def __post_init__(self) -> None:
        given = [name for name in ("step", "seconds", "byte") if getattr(self, name) is not None]
        if len(given) > 1:
            keys = " and ".join(f"`failure.{self.name}.{name}`" for name in given)
            raise ConfigError(f"{keys} are both set: a failure strikes at one of them, leave the others null")
        step = self._drawn_step() if self.needs_trigger and not given else self.step
        self.trigger = Moment(step or 0, self.seconds or 0.0, self.byte or 0)

    @property
    def name(self) -> str:
        """As the option of the group is called."""
        return snake_case(type(self).__name__)

    @property
    def times(self) -> int:
        """Strikes in a row."""
        return 1

    @property
    def random(self) -> random.Random:
        """A generator that is this failure's own, at its beginning."""
        return random.Random(f"{self.name} {self.seed}")

    def is_due(self, now: Moment) -> bool:
        """Whether its moment has come."""
        return all(at >= when for at, when in zip(now, self.trigger, strict=True))

    def _drawn_step(self) -> int:
        if self.last_step is None or self.last_step < 1:
            raise ConfigError(
                f"`failure={self.name}` draws its step from `trainer.max_steps`, which is not set: set "
                f"`failure.{self.name}.step`"
            )
        return self.random.randrange(self.last_step)


def kill() -> None:
    """End this process as a machine does: nothing is flushed, nothing runs any more."""
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # the signal of another thread may take a moment


def snake_case(name: str) -> str:
    """The name of an option for a class.

    Examples:
        >>> snake_case("TornWrite")
        'torn_write'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
