"""What the lives of a run, taken together, did otherwise than a run that nobody killed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from zo_lightning.drill.lines import Line


@dataclass(slots=True)
class Verdict:
    """Counts that must all be zero, and a sentence for each fault.

    Args:
        steps_lost: acknowledged steps that a later life asked about again, and steps that no life made.
        digest_mismatches: acknowledged steps after which the factors differ from the unbroken run's.
        samples_repeated: examples that counted more than once in one epoch.
        samples_missed: examples of an epoch that never counted, though they do in the unbroken run.
        faults: sentences.
    """

    steps_lost: int = 0
    digest_mismatches: int = 0
    samples_repeated: int = 0
    samples_missed: int = 0
    faults: list[str] = field(default_factory=list)


def judge(lives: Sequence[Sequence[Line]], unbroken: Sequence[Line]) -> Verdict:
    """Hold the lives of one run against the unbroken run.

    The examples of a step are those of the last life that asked: its answers are in the record. A step that was asked,
    recorded, and killed before its acknowledgement is replayed by the next life and counts once.

    Args:
        lives: what each life wrote, in order.
        unbroken: what the run wrote that nobody killed.

    Examples:
        >>> ask, done = Line(did="ask", step=1, uids=(0, 1)), Line(did="acknowledge", step=1, uids=(0, 1), digest="a")
        >>> judge([[ask], [ask, done]], [ask, done]).faults
        []
        >>> judge([[ask, done], [ask, done]], [ask, done]).faults
        ['life 2 asked about step 1 again, which was acknowledged']
    """
    verdict = Verdict()
    truth = {line.step: line.digest for line in unbroken if line.did == "acknowledge"}
    acknowledged: set[int] = set()
    for number, lines in enumerate(lives, 1):
        lost = {line.step for line in lines if line.did == "ask" and line.step in acknowledged}
        wrong = [line.step for line in lines if line.did == "acknowledge" and line.digest != truth.get(line.step)]
        acknowledged |= {line.step for line in lines if line.did == "acknowledge"}
        verdict.steps_lost += len(lost)
        verdict.digest_mismatches += len(wrong)
        verdict.faults += [f"life {number} asked about step {step} again, which was acknowledged" for step in lost]
        verdict.faults += [f"life {number}: other factors than the unbroken run's after step {step}" for step in wrong]
    never = truth.keys() - acknowledged
    verdict.steps_lost += len(never)
    verdict.faults += [f"no life made step {step}" for step in sorted(never)]
    _judge_samples(verdict, lives, unbroken)
    return verdict


def _judge_samples(verdict: Verdict, lives: Sequence[Sequence[Line]], unbroken: Sequence[Line]) -> None:
    seen, truth = _epochs(lives), _epochs([unbroken])
    everything = {uid for epoch in truth.values() for uid in epoch}
    for epoch in sorted(seen.keys() | truth.keys()):
        due = truth[epoch].keys() if epoch == max(truth) else everything  # the last one may end early
        repeated = sum(times - 1 for times in seen[epoch].values())
        missed = len(due - seen[epoch].keys())
        verdict.samples_repeated += repeated
        verdict.samples_missed += missed
        if repeated or missed:
            verdict.faults.append(f"epoch {epoch}: {repeated} examples seen again, {missed} not seen")


def _epochs(lives: Sequence[Sequence[Line]]) -> defaultdict[int, Counter[int]]:
    """How often each example counted, by epoch."""
    asked: dict[int, list[Line]] = {}
    for lines in lives:
        asked |= _asked(lines)
    epochs: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for step in asked.values():
        for line in step:
            epochs[line.epoch].update(line.uids)
    return epochs


def _asked(lines: Sequence[Line]) -> dict[int, list[Line]]:
    steps: defaultdict[int, list[Line]] = defaultdict(list)
    for line in lines:
        if line.did == "ask":
            steps[line.step].append(line)
    return dict(steps)
