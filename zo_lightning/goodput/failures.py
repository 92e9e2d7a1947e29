"""When a cluster fails, and what: a law for the times between failures, and parts that take others with them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from zo_lightning.errors import ConfigError
from zo_lightning.goodput import portable
from zo_lightning.goodput.checks import LEAST, MOST, refuse, refuse_outside
from zo_lightning.goodput.model import Job

Law = Literal["exponential", "weibull", "lognormal", "trace"]
Kind = Literal["device", "rack", "switch"]
Trace = Literal["gaps", "times"]

KINDS: tuple[Kind, ...] = get_args(Kind)
GAPS, WHICH, PHASES, SURVIVAL = range(4)  # streams of uniforms; from SURVIVAL on one for each tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """The law of a cluster's failures.

    Devices, racks and switches fail independently of each other. Their rates add up to the cluster's, and a failure is
    of each kind in proportion to them. The law is that of the training time between two failures of the cluster, with
    that mean whatever its shape; a restart does not age it.

    Attributes:
        law: of the times between failures; ``trace``: those of ``trace``, as they are, over and over again.
        shape: Weibull's exponent (below 1 failures come in bursts), or the lognormal law's standard deviation of the
            logarithm; the others have none.
        trace: seconds of training.
        trace_holds: whether these are ``gaps`` between failures or the ``times`` of failures from the start.
        rack_devices: devices that fail with their rack.
        rack_mtbf_hours: of one rack, without its devices' own failures; inf: racks do not fail.
        switch_devices: devices that fail with their switch.
        switch_mtbf_hours: of one switch; inf: switches do not fail.

    Raises:
        ConfigError: for a number out of its range, a shape or a trace that the law does not use, an empty trace, or
            times that are not in order.
    """

    law: Law = "exponential"
    shape: float = 1.0
    trace: tuple[float, ...] = ()
    trace_holds: Trace = "gaps"
    rack_devices: int = 64
    rack_mtbf_hours: float = math.inf
    switch_devices: int = 512
    switch_mtbf_hours: float = math.inf

    def __post_init__(self) -> None:
        for name, choices in (("law", get_args(Law)), ("trace_holds", get_args(Trace))):
            if getattr(self, name) not in choices:
                refuse(f"goodput.{name}", getattr(self, name), f"choose one of {', '.join(choices)}")
        # Beyond these the mean is that of a few times that a simulation never draws.
        refuse_outside("goodput.shape", self.shape, 0.1, 10.0)
        for kind in ("rack", "switch"):
            refuse_outside(f"goodput.{kind}_devices", getattr(self, f"{kind}_devices"), 1)
            hours = getattr(self, f"{kind}_mtbf_hours")
            if hours != math.inf:
                refuse_outside(f"goodput.{kind}_mtbf_hours", hours, LEAST, MOST)
        if self.shape != 1 and self.law not in ("weibull", "lognormal"):
            refuse("goodput.shape", self.shape, f"`goodput.law={self.law}` has none: choose weibull or lognormal")
        if self.law == "trace":
            self._check_trace()
        elif self.trace:
            raise ConfigError(
                f"`goodput.trace` is given, but `goodput.law={self.law}` reads none: say `goodput.law=trace`"
            )

    def _check_trace(self) -> None:
        if not self.trace:
            raise ConfigError("`goodput.trace` is empty: give at least one failure, or another `goodput.law`")
        for value in self.trace:
            refuse_outside("goodput.trace", value, 0, 1e15)
        if min(self.gaps()) < 0:
            raise ConfigError("`goodput.trace` is not in order: sort it, or say `goodput.trace_holds=gaps`")
        if max(self.trace) == 0:
            refuse("goodput.trace", 0.0, "at least one of its times must be above 0")

    def gaps(self) -> tuple[float, ...]:
        """Seconds of training between the failures of the trace.

        Examples:
            >>> Failures(law="trace", trace=(5, 7, 12), trace_holds="times").gaps()
            (5, 2, 5)
        """
        if self.trace_holds == "gaps":
            return self.trace
        return tuple(time - before for before, time in zip((0, *self.trace), self.trace, strict=False))

    def named(self) -> tuple[str, ...]:
        """Keys that say how far failures are apart.

        Examples:
            >>> Failures().named(), Failures(rack_mtbf_hours=500).named()
            (('mtbf_hours',), ('mtbf_hours', 'rack_mtbf_hours'))
        """
        if self.law == "trace":
            return ("trace",)
        near = [f"{kind}_mtbf_hours" for kind in ("rack", "switch")]
        return ("mtbf_hours", *(key for key in near if getattr(self, key) < math.inf))

    def rates(self, job: Job) -> tuple[float, float, float]:
        """Failures of devices, racks and switches of a cluster, per second."""
        racks, switches = -(-job.devices // self.rack_devices), -(-job.devices // self.switch_devices)
        parts = (job.devices, job.mtbf_hours), (racks, self.rack_mtbf_hours), (switches, self.switch_mtbf_hours)
        device, rack, switch = (count / (hours * 3600) for count, hours in parts)
        return device, rack, switch

    def mtbf(self, job: Job) -> float:
        """Mean seconds of training between two failures of the cluster; inf: it never fails.

        Examples:
            >>> round(Failures().mtbf(Job()) - Job().mtbf, 9)
            0.0
            >>> round(Failures(rack_mtbf_hours=500).mtbf(Job(devices=64)) / 3600, 3)  # of the rack alone: 500
            304.878
        """
        if self.law == "trace":
            return math.fsum(self.gaps()) / len(self.trace)
        rate = math.fsum(self.rates(job))
        return 1 / rate if rate > 0 else math.inf

    def taken(self, job: Job) -> tuple[int, int, int]:
        """Devices that go with a failure of each kind."""
        return 1, min(self.rack_devices, job.devices), min(self.switch_devices, job.devices)


def draw_gaps(law: Failures, mean: float, count: int, seed: int) -> portable.Floats:
    """Seconds of training before each failure: the same numbers, times the mean, for every mean.

    Args:
        law: see ``Failures``.
        mean: seconds; of no account for a trace.
        count: failures.
        seed: of the simulation.

    Returns:
        float64 [count].
    """
    if law.law == "trace":
        return np.resize(np.array(law.gaps(), np.float64), count)
    return _quantiles(law, mean, portable.uniforms(seed, GAPS, count))


def longest_gap(law: Failures, mean: float) -> float:
    """Most seconds that can be between two failures: of uniforms with 52 bits the last ones, or the trace's.

    Examples:
        >>> longest_gap(Failures(), 1.0)  # of this mean
        36.7368005696771
        >>> longest_gap(Failures(law="trace", trace=(5, 7, 12)), 8.0)
        12.0
    """
    if law.law == "trace":
        return float(max(law.gaps()))
    return float(_quantiles(law, mean, np.array([2.0**-53, 1 - 2.0**-53])).max())


def _quantiles(law: Failures, mean: float, drawn: portable.Floats) -> portable.Floats:
    if law.law == "lognormal":
        return mean * portable.exp(law.shape * portable.normal_quantile(drawn) - law.shape * law.shape / 2)
    waited = -portable.log(drawn)
    if law.law == "weibull":
        return mean / portable.gamma(1 + 1 / law.shape) * portable.power(waited, 1 / law.shape)
    return mean * waited


def draw_kinds(law: Failures, job: Job, count: int, seed: int) -> NDArray[np.int64]:
    """Which of ``KINDS`` each failure is.

    Returns:
        int64 [count].
    """
    device, rack, switch = law.rates(job)
    if rack == switch == 0:
        return np.zeros(count, np.int64)
    total = device + rack + switch
    drawn = portable.uniforms(seed, WHICH, count) * total
    return (drawn >= device).astype(np.int64) + (drawn >= device + rack)


def read_trace(path: Path | str) -> tuple[float, ...]:
    """A trace from a text file: one number a line, in seconds; what follows a ``#`` is a remark.

    Raises:
        ConfigError: for a file that is missing or a line that is no number.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"`goodput.trace`={path}: there is no such file")
    numbers = []
    for row, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if text:
            try:
                numbers.append(float(text))
            except ValueError:
                raise ConfigError(f"`goodput.trace`: line {row} of {path} is no number: {text}") from None
    return tuple(numbers)
