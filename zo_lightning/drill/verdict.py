"""What the lives of a run, taken together, did otherwise than the same run that nobody killed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from zo_lightning.drill.lines import Line
from zo_lightning.drill.report import Findings


def judge_zo(lives: Sequence[Sequence[Line]], unbroken: Sequence[Line]) -> Findings:
    """Hold the lives of one run against the unbroken run.

    The examples of a step are those of the last life that asked: its answers are in the record. A step that was asked,
    recorded, and killed before its acknowledgement is replayed by the next life and counts once.

    Args:
        lives: what each life wrote, in order.
        unbroken: what the run wrote that nobody killed.

    Returns:
        ``steps_lost``: acknowledged steps that a later life asked about again, and steps that no life made;
        ``digest_mismatches``: acknowledged steps with other bits; ``samples_repeated``: examples that counted more than
        once in an epoch; ``samples_missed``: those that never did. All must be zero.

    Examples:
        >>> ask, done = Line(did="ask", step=1, uids=(0, 1)), Line(did="acknowledge", step=1, uids=(0, 1), digest="a")
        >>> judge_zo([[ask], [ask, done]], [ask, done]).faults
        []
        >>> judge_zo([[ask, done], [ask, done]], [ask, done]).faults
        ['life 2 asked about step 1 again, which was acknowledged']
    """
    names = ("steps_lost", "digest_mismatches", "samples_repeated", "samples_missed")
    found = Findings(dict.fromkeys(names, 0))
    acknowledged: set[int] = set()
    for number, lines in enumerate(lives, 1):
        lost = sorted({line.step for line in lines if line.did == "ask" and line.step in acknowledged})
        acknowledged |= {line.step for line in lines if line.did == "acknowledge"}
        found.counts["steps_lost"] += len(lost)
        found.faults += [f"life {number} asked about step {step} again, which was acknowledged" for step in lost]
    _judge_digests(found, lives, unbroken)
    _judge_samples(found, lives, unbroken)
    return found


def judge_adamw(lives: Sequence[Sequence[Line]], unbroken: Sequence[Line], *, bound: int, warm_up: int = 0) -> Findings:
    """Hold the lives of a first-order run against the unbroken run.

    Every life begins with the bits that the unbroken run had at that step, at most ``bound`` steps back, and
    ``warm_up`` more where the life that was killed had saved nothing yet.

    Args:
        lives: what each life wrote, in order.
        unbroken: what the run wrote that nobody killed.
        bound: acknowledged steps that one kill may take.
        warm_up: steps of a life before it begins to save.

    Returns:
        ``steps_redone``: acknowledged steps that later lives made again; ``steps_lost``: of these, more than that
        at once, and steps that no life made; ``digest_mismatches``: beginnings of lives, and steps, with other bits.
    """
    found = Findings(dict.fromkeys(("steps_lost", "digest_mismatches", "steps_redone"), 0))
    last = begun = 0
    for number, lines in enumerate(lives, 1):
        for line in lines:
            if line.did == "begin":
                redone = max(0, last - line.step)
                allowed = bound + (warm_up if line.step <= begun else 0)
                begun = line.step
                found.counts["steps_redone"] += redone
                if redone > allowed:
                    found.counts["steps_lost"] += redone - allowed
                    found.faults.append(f"life {number} went back {redone} steps from step {last}, more than {allowed}")
            last = line.step
    _judge_digests(found, lives, unbroken)
    return found


def _judge_digests(found: Findings, lives: Sequence[Sequence[Line]], unbroken: Sequence[Line]) -> None:
    """Steps that no life made, and steps after which, or lives at whose beginning, the bits are others."""
    truth = {line.step: line.digest for line in unbroken if line.digest}
    made = {line.step for lines in lives for line in lines if line.digest}
    for number, lines in enumerate(lives, 1):
        wrong = [line.step for line in lines if line.digest and line.digest != truth.get(line.step)]
        found.counts["digest_mismatches"] += len(wrong)
        found.faults += [f"life {number}: other bits than the unbroken run's after step {step}" for step in wrong]
    never = sorted(truth.keys() - made)
    found.counts["steps_lost"] += len(never)
    found.faults += [f"no life made step {step}" for step in never]


def _judge_samples(found: Findings, lives: Sequence[Sequence[Line]], unbroken: Sequence[Line]) -> None:
    seen, truth = _epochs(lives), _epochs([unbroken])
    everything = {uid for epoch in truth.values() for uid in epoch}
    for epoch in sorted(seen.keys() | truth.keys()):
        due = truth[epoch].keys() if epoch == max(truth) else everything  # the last one may end early
        repeated = sum(times - 1 for times in seen[epoch].values())
        missed = len(due - seen[epoch].keys())
        found.counts["samples_repeated"] += repeated
        found.counts["samples_missed"] += missed
        if repeated or missed:
            found.faults.append(f"epoch {epoch}: {repeated} examples seen again, {missed} not seen")


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
