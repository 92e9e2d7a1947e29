"""The supervisor on processes that are small and real: they beat, die and hang as a script says."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from zo_lightning.supervisor import SPARE, Report, Settings, Supervisor
from zo_lightning.supervisor.child import Child, Heard

# Each start does the next part of `script.json`: so many steps, and then an end. Its steps are kept in `step`.
CHILD = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
from zo_lightning.supervisor import connect
from zo_lightning.supervisor.heartbeat import TRAINING

folder, line = Path(sys.argv[1]), connect()
if line.is_spare:
    (folder / "spare").write_text(str(os.getpid()))
    line.stand_by()
starts = (folder / "starts").read_text().split() if (folder / "starts").exists() else []
(folder / "starts").write_text(" ".join([*starts, line.role]))
steps, end = json.loads((folder / "script.json").read_text())[len(starts)]
step = int((folder / "step").read_text()) if (folder / "step").exists() else 0
line.beat(TRAINING, step)
for step in range(step + 1, step + steps + 1):
    time.sleep(0.01)
    (folder / "step").write_text(str(step))
    line.beat(TRAINING, step, done=True)
time.sleep(0.05)
match end:
    case "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    case "wait for the spare and kill":
        while not (folder / "spare").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    case "hang":
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (folder / "other").write_text(str(other.pid))
        time.sleep(600)
    case "wait for a signal":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        (folder / "waiting").write_text(str(os.getpid()))
        time.sleep(600)
    case code:
        sys.exit(code)
"""
Run = Callable[..., Report]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(*script: tuple[int, str | int], **settings: float) -> Report:
        (tmp_path / "script.json").write_text(json.dumps(script))
        defaults = dict(pause=0.01, hang_floor=0.5, start_timeout=60.0)
        command = [sys.executable, "-c", CHILD, str(tmp_path)]
        return Supervisor(lambda role: command, tmp_path, Settings(**(defaults | settings))).run()  # type: ignore[arg-type]

    return run


def starts(folder: Path) -> list[str]:
    return (folder / "starts").read_text().split()


def noted(folder: Path) -> list[str]:
    return [json.loads(line)["cause"] for line in (folder / "incidents.jsonl").read_text().splitlines()]


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def test_a_killed_run_goes_on_and_the_report_says_what_it_cost(run: Run, tmp_path: Path):
    report = run((5, "kill"), (4, 0))
    assert report.exit_code == 0 and starts(tmp_path) == ["first", "again"]
    (incident,) = report.incidents
    assert (incident.cause, incident.step, incident.steps_lost, incident.by_spare) == ("exit code 137", 5, 0, False)
    assert incident.relaunch is not None and incident.first_step is not None
    assert incident.detection >= 0 and incident.relaunch < incident.first_step
    assert noted(tmp_path) == ["exit code 137"]
    assert json.loads(report.line())["steps_lost"] == 0


def test_steps_that_are_made_again_are_counted(run: Run, tmp_path: Path):
    (tmp_path / "step").write_text("0")

    def forget() -> None:
        while not (tmp_path / "waiting").exists():
            time.sleep(0.01)
        (tmp_path / "step").write_text("3")
        os.kill(int((tmp_path / "waiting").read_text()), signal.SIGKILL)

    threading.Thread(target=forget).start()
    report = run((5, "wait for a signal"), (4, 0), hang_floor=60.0)
    assert [incident.steps_lost for incident in report.incidents] == [2]


def test_a_hang_is_ended_with_all_that_the_run_has_started(run: Run, tmp_path: Path):
    report = run((20, "hang"), (4, 0))
    assert report.exit_code == 0 and [incident.cause for incident in report.incidents] == ["hang in training"]
    assert report.incidents[0].detection >= 0.5  # the bound; not before
    assert not is_running(int((tmp_path / "other").read_text()))


def test_an_error_that_a_restart_cannot_mend_is_not_tried_again(run: Run, tmp_path: Path):
    report = run((3, 2))
    assert report.exit_code == 2 and starts(tmp_path) == ["first"] and not report.incidents


def test_it_gives_up_without_progress(run: Run, tmp_path: Path):
    report = run((3, "kill"), (0, 1), (0, 1), (0, 1), max_without_progress=3)
    assert report.exit_code == 1 and len(starts(tmp_path)) == 4
    assert noted(tmp_path) == ["exit code 137", "exit code 1", "exit code 1"]
    assert "no new step" in report.reason and json.loads(report.line())["gave_up"] == report.reason


def test_it_gives_up_after_the_limit(run: Run, tmp_path: Path):
    report = run((1, "kill"), (1, "kill"), (1, 75), (1, 0), max_restarts=2)
    assert report.exit_code == 75 and len(starts(tmp_path)) == 3 and "supervise.max_restarts" in report.reason


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 138)], ids=str
)
def test_signals_are_handed_on_and_end_it_with_the_runs_exit_code(run: Run, tmp_path: Path, number: int, code: int):
    def ask() -> None:
        while not (tmp_path / "waiting").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    threading.Thread(target=ask).start()
    report = run((3, "wait for a signal"), hang_floor=60.0)
    assert report.exit_code == code and starts(tmp_path) == ["first"]
    assert signal.getsignal(number) is before


def test_a_signal_in_a_pause_ends_it_too(run: Run, tmp_path: Path):
    def ask() -> None:
        while not (tmp_path / "starts").exists():
            time.sleep(0.01)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=ask).start()
    report = run((0, "kill"), (0, "wait for a signal"), pause=200.0)
    assert report.exit_code == 143


def test_a_spare_takes_over_and_another_one_waits_behind_it(run: Run, tmp_path: Path):
    report = run((3, "wait for the spare and kill"), (3, "kill"), (3, 0), spare=True, hang_floor=60.0)
    assert report.exit_code == 0 and starts(tmp_path) == ["first", "spare", "spare"]
    assert [incident.by_spare for incident in report.incidents] == [True, True]
    assert not is_running(int((tmp_path / "spare").read_text()))


def test_a_spare_that_is_dead_already_is_not_told_to_take_over():
    heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
    child = Child([sys.executable, "-c", ""], SPARE, heard.put)
    assert heard.get(timeout=60).beat is None
    child.take_over()


def test_a_signal_during_the_first_start_ends_it_too(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(supervisor: Supervisor, role: str) -> Child:
        child = started(supervisor, role)
        os.kill(os.getpid(), signal.SIGTERM)
        return child

    started = Supervisor._start
    monkeypatch.setattr(Supervisor, "_start", interrupted)
    assert run((0, "wait for a signal")).exit_code == 143


def test_the_run_ends_with_its_supervisor(tmp_path: Path):
    (tmp_path / "script.json").write_text(json.dumps([[3, "wait for a signal"]]))
    code = f"""
import sys
from pathlib import Path
from zo_lightning.supervisor import Settings, Supervisor

Supervisor(lambda role: [sys.executable, "-c", {CHILD!r}, {str(tmp_path)!r}], Path({str(tmp_path)!r}), Settings()).run()
"""
    supervisor = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "waiting").exists():
        time.sleep(0.01)
    supervisor.kill()
    supervisor.wait()
    deadline = time.monotonic() + 30
    while is_running(pid := int((tmp_path / "waiting").read_text())) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(pid)


def test_a_supervisor_loads_no_torch(tmp_path: Path):
    code = "import sys, zo_lightning.supervisor, zo_lightning.cli.supervise; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
