"""The parts of zo-drill: that each counts nothing where all is well, and that each can fail."""

from __future__ import annotations

import signal
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from zo_lightning.drill import flips, power, trace
from zo_lightning.drill.kills import kills
from zo_lightning.drill.lines import Line, LineWriter, read_lines
from zo_lightning.drill.lives import DrillError, live
from zo_lightning.drill.report import MUST_BE_ZERO, Findings, publish
from zo_lightning.drill.specimens import HeldFiles
from zo_lightning.drill.verdict import judge_adamw, judge_zo

STEPS, BATCHES = 6, 3  # two epochs


def did(what, step):
    epoch, batch = divmod(step - 1, BATCHES)
    uids = (2 * batch, 2 * batch + 1)
    return Line(did=what, step=step, epoch=epoch, uids=uids, digest=f"bits {step}" if what == "acknowledge" else "")


def life(first, last, *, replayed=0):
    """Steps ``first`` to ``last``, of which the first ones come from the journal."""
    asked = [
        [did("ask", step)] * (step >= first + replayed) + [did("acknowledge", step)] for step in range(first, last + 1)
    ]
    return [line for step in asked for line in step]


UNBROKEN = life(1, STEPS)


def counts(lives, unbroken=UNBROKEN):
    verdict = judge_zo(lives, unbroken)
    assert (not verdict.faults) == verdict.good == (not any(verdict.counts.values()))
    return [verdict.counts[name] for name in MUST_BE_ZERO[:4]]


def test_lives_that_lose_nothing():
    assert counts([UNBROKEN]) == [0, 0, 0, 0]
    assert counts([life(1, 3), [], life(1, 6, replayed=3)]) == [0, 0, 0, 0]
    assert counts([life(1, 4)[:-1], life(1, 6, replayed=4)]) == [
        0,
        0,
        0,
        0,
    ]  # killed between record and acknowledgement
    assert counts([life(1, 4)[:-1], life(1, 6, replayed=3)]) == [0, 0, 0, 0]  # and between question and record


def test_an_acknowledged_step_that_is_asked_again_is_lost():
    assert counts([life(1, 3), life(3, 6)]) == [1, 0, 0, 0]


def test_a_step_that_nobody_makes_is_lost_and_its_samples_are_missed():
    assert counts([life(1, 2), life(4, 6)]) == [1, 0, 0, 2]


def test_other_bits_are_seen_in_replayed_steps_too():
    lying = [
        replace(line, digest="others") if line.step == 2 and line.did == "acknowledge" else line for line in UNBROKEN
    ]
    assert counts([lying]) == [0, 1, 0, 0]
    assert (
        counts([life(1, 3), [*life(1, 1, replayed=1), replace(did("acknowledge", 2), digest="x"), *life(4, 6)]])[1] == 1
    )


def test_a_cursor_that_is_off_by_one_batch_repeats_samples_and_misses_others():
    shifted = [replace(line, uids=did("ask", 1).uids) if line.step == 3 else line for line in UNBROKEN]
    assert counts([shifted]) == [0, 0, 2, 2]


def test_first_order_lives_go_back_at_most_the_bound():
    def begun(step, digest=None):
        return Line(did="begin", step=step, digest=f"bits {step}" if digest is None else digest)

    unbroken = [begun(0), *UNBROKEN]
    for back, bound, lost in ((3, 3, 0), (3, 2, 1), (4, 1, 3)):
        verdict = judge_adamw([[begun(0), *life(1, 5)], [begun(5 - back), *life(6 - back, 6)]], unbroken, bound=bound)
        assert verdict.counts == {"steps_lost": lost, "digest_mismatches": 0, "steps_redone": back}
    twice = [[begun(0), *life(1, 5)], [begun(0), *life(1, 6)]]  # nothing was saved before the first kill
    for warm_up, lost in ((4, 0), (3, 1)):
        anew = judge_adamw(twice, unbroken, bound=1, warm_up=warm_up)
        assert anew.counts == {"steps_lost": lost, "digest_mismatches": 0, "steps_redone": 5}
    saved = judge_adamw([[begun(0), *life(1, 5)], [begun(2), *life(3, 6)]], unbroken, bound=2, warm_up=4)
    assert saved.counts["steps_lost"] == 1
    forgotten = [[begun(0), *life(1, 5)], [begun(4), *life(5, 5)], [begun(0), *life(1, 6)]]
    assert judge_adamw(forgotten, unbroken, bound=1).counts["steps_lost"] == 4
    verdict = judge_adamw([[begun(0), *life(1, 5)], [begun(4, "torn"), *life(5, 6)]], unbroken, bound=3)
    assert verdict.counts["digest_mismatches"] == 1 and "other bits" in verdict.faults[0]


def test_half_a_line_is_no_acknowledgement(tmp_path):
    writer = LineWriter(tmp_path / "lines")
    writer.write("ask", 1, uids=(3, 4))
    writer.write("acknowledge", 1, digest="x")
    whole = (tmp_path / "lines").read_bytes()
    assert [line.did for line in read_lines(tmp_path / "lines")] == ["ask", "acknowledge"]
    (tmp_path / "lines").write_bytes(whole[:-5])
    assert [(line.did, line.uids) for line in read_lines(tmp_path / "lines")] == [("ask", (3, 4))]


class Ended:
    """A life that ended by itself, or would live on."""

    def __init__(self, code):
        self.code = code

    def wait(self, seconds):
        return self.code

    def kill(self):
        return -signal.SIGKILL


def test_a_life_that_fails_is_no_kill(tmp_path):
    with pytest.raises(DrillError, match=r"life 1 of .*run ended with exit code 2, unkilled: see .*life0001\.log"):
        live(tmp_path / "run", lambda life: Ended(2), kills(0), limit=3)


def test_a_life_that_hangs_is_named(tmp_path):
    with pytest.raises(DrillError, match=r"life 1 of .* did not end within 600 s"):
        live(tmp_path / "run", lambda life: Ended(None), kills(0), limit=0)


def test_a_run_has_as_many_kills_as_are_asked_for(tmp_path):
    seen = []

    def start(life):
        seen.append(life.kill)
        return Ended(0 if life.kill is None else -signal.SIGKILL)

    lives = live(tmp_path / "run", start, kills(5), limit=4)
    assert lives.kills == 4 and seen == [*islice(kills(5), 4), None]
    assert {kill.by for kill in islice(kills(5), 40)} == {"clock", "line", "file"}


def test_no_flip_and_no_truncation_is_accepted(tmp_path):
    found = flips.drill(tmp_path, fuzzed=200, seed=0)
    assert found.good and found.counts["flips_tried"] > 30_000 and found.counts["manifests_fuzzed"] == 200


def test_a_reader_without_checksums_is_caught():
    files = HeldFiles({Path("/store/data"): b"truth"})
    found = flips._damaged(files, lambda: (str(files.read(Path("/store/data"))), False))
    assert found.counts == {"flips_tried": 45, "flips_accepted": 45} and not found.good
    assert "bit 0 of byte 0 flipped is accepted without a word" in found.faults[0]


def test_a_reader_that_crashes_is_caught(tmp_path, monkeypatch):
    flips._write_store(tmp_path / "store")
    monkeypatch.setattr(flips, "_read_store", lambda files, place: {}["missing"])
    found = flips._fuzzed(tmp_path / "store", 3, seed=0)
    assert found.counts["crashes"] == 3 and not found.good
    assert all(Path(fault.split(" ")[0]).is_file() for fault in found.faults)


def test_what_a_loss_of_power_leaves_is_what_was_promised(tmp_path):
    found = power.drill(tmp_path, cap=150, seed=0)
    assert found.good and found.counts["images_tried"] > 300


def test_a_sync_that_does_nothing_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(trace._RecordingFile, "sync", lambda self: None)
    found = power.drill(tmp_path, cap=150, seed=0)
    assert found.counts["images_violating"] > 10 and not found.good
    assert Path(found.faults[0].split(" ")[0]).is_dir()


def test_the_report_sums_up_and_ends_in_one_line_of_json(tmp_path, capsys):
    zo = Findings({"kills": 2, "steps_lost": 0})
    assert publish({"zo": zo, "flips": Findings({"flips_tried": 9, "flips_accepted": 0})}, {"seed": 1}, tmp_path)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == (tmp_path / "drill.json").read_text().strip()
    assert '"kills": 2' in last and '"samples_missed": 0' in last and '"flips_tried": 9' in last
    assert not publish({"zo": Findings({"steps_lost": 1}, ["run01: lost"])}, {}, tmp_path)
    assert "run01: lost" in capsys.readouterr().out
