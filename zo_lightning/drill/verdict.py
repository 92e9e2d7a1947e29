"""What the lives of a run, taken together, did otherwise than the same run that nobody killed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from zo_lightning.drill.lines import Line


@dataclass(slots=True)
class Verdict:
    """Counts that must all be zero, and a sentence for each fault.

    Args:
        steps_lost: acknowledged steps that a later life made again though it must not, and steps that no life made.
        digest_mismatches: acknowledged steps after which the factors differ from the unbroken run's.
        samples_repeated: examples that counted more than once in one epoch.
        samples_missed: examples of an epoch that never counted, though they do in the unbroken run.
        steps_redone: acknowledged steps that later lives made again, as they may.
        faults: sentences.
    """

    steps_lost: int = 0
    digest_mismatches: int = 0
    samples_repeated: int = 0
    samples_missed: int = 0
    steps_redone: int = 0
    faults: list[str] = field(default_factory=list)


def judge_zo(lives: Sequence[Sequence[Line]], unbroken: Sequence[Line]) -> Verdict:
    """Hold the lives of one run against the unbroken run.

    The examples of a step are those of the last life that asked: its answers are in the record. A step that was asked,
    recorded, and killed before its acknowledgement is replayed by the next life and counts once.

    Args:
        lives: what each life wrote, in order.
        unbroken: what the run wrote that nobody killed.

    Examples:
        >>> ask, done = Line(did="ask", step=1, uids=(0, 1)), Line(did="acknowledge", step=1, uids=(0, 1), digest="a")
        >>> judge_zo([[ask], [ask, done]], [ask, done]).faults
        []
        >>> judge_zo([[ask, done], [ask, done]], [ask, done]).faults
        ['life 2 asked about step 1 again, which was acknowledged']
    """
    verdict = Verdict()
    acknowledged: set[int] = set()
    for number, lines in enumerate(lives, 1):
        lost = sorted({line.step for line in lines if line.did == "ask" and line.step in acknowledged})
        acknowledged |= {line.step for line in lines if line.did == "acknowledge"}
        verdict.steps_lost += len(lost)
        verdict.faults += [f"life {number} asked about step {step} again, which was acknowledged" for step in lost]
    _judge_digests(verdict, lives, unbroken)
    _judge_samples(verdict, lives, unbroken)
    return verdict


def judge_adamw(lives: Sequence[Sequence[Line]], unbroken: Sequence[Line], *, bound: int) -> Verdict:
    """Hold the lives of a first-order run against the unbroken run.

    Every life begins with the bits that the unbroken run had at that step, at most ``bound`` steps back.

    Args:
        lives: what each life wrote, in order.
        unbroken: what the run wrote that nobody killed.
        bound: acknowledged steps that one kill may take.
    """
    verdict, last = Verdict(), 0
    for number, lines in enumerate(lives, 1):
        for line in lines:
            if line.did == "begin" and (redone := last - line.step) > 0:
                verdict.steps_redone += redone
                verdict.steps_lost += max(0, redone - bound)
                if redone > bound:
                    verdict.faults.append(f"life {number} went back {redone} steps from step {last}, more than {bound}")
            last = line.step
    _judge_digests(verdict, lives, unbroken)
    return verdict


def _judge_digests(verdict: Verdict, lives: Sequence[Sequence[Line]], unbroken: Sequence[Line]) -> None:
    """Steps that no life made, and steps after which, or lives at whose beginning, the bits are others."""
    truth = {line.step: line.digest for line in unbroken if line.digest}
    made = {line.step for lines in lives for line in lines if line.digest}
    for number, lines in enumerate(lives, 1):
        wrong = [line.step for line in lines if line.digest and line.digest != truth.get(line.step)]
        verdict.digest_mismatches += len(wrong)
        verdict.faults += [f"life {number}: other bits than the unbroken run's after step {step}" for step in wrong]
    never = sorted(truth.keys() - made)
    verdict.steps_lost += len(never)
    verdict.faults += [f"no life made step {step}" for step in never]


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
