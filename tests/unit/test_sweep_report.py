"""The report of a sweep, from folders as jobs leave them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from zo_lightning.cli.sweep_figure import curves, figure_axes
from zo_lightning.cli.sweep_jobs import Job, best_job, read_jobs
from zo_lightning.cli.sweep_report import main


def job(folder: Path, *overrides: str, loss: float | None = None, steps: int = 5, metric: str = "val/loss") -> None:
    """A job's folder; without a loss the job is still at work."""
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(["model=tiny-llama", *overrides]))
    if loss is None:
        (folder / "csv" / "version_0").mkdir(parents=True)
        (folder / "csv" / "version_0" / "metrics.csv").write_text("step,train/loss\n0,1.0\n1,0.9\n")
        return
    results = {
        "steps": steps,
        "before": {"loss": 1.0, "accuracy": 0.5},
        "after": {"loss": loss, "accuracy": 1 - loss},
        "optimized_metric": {"name": metric, "value": loss},
    }
    (folder / "results.json").write_text(json.dumps(results))


def failed(folder: Path, *overrides: str, message: str = "the engine died") -> None:
    folder.mkdir(parents=True)
    about = {"overrides": ["model=tiny-llama", *overrides], "error": "EngineError", "message": message}
    (folder / "FAILED").write_text(yaml.safe_dump(about))


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    job(tmp_path / "0", "update.lr=1e-4", "seed=1", loss=0.6)
    job(tmp_path / "1", "update.lr=1e-4", "seed=2", loss=0.4)
    job(tmp_path / "2", "update.lr=1e-3", "seed=1", loss=0.3)
    failed(tmp_path / "3", "update.lr=1e-3", "seed=2")
    job(tmp_path / "10", "update.lr=1e-2", "seed=1")
    (tmp_path / ".submitit").mkdir()
    return tmp_path


def report(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, dict]:
    main([str(folder)])
    printed = capsys.readouterr().out
    return printed, json.loads(printed.splitlines()[-1])


def test_every_job_is_a_row_and_the_best_is_marked(sweep: Path, capsys):
    printed, found = report(sweep, capsys)
    rows = {line.split()[0]: line.split() for line in printed.splitlines() if line.strip()[:1].isdigit()}
    assert list(rows) == ["0", "1", "2", "3", "10"]
    assert rows["2"][1] == "*" and "1.000→0.300" in rows["2"] and "0.500→0.700" in rows["2"]
    assert "failed" in rows["3"] and "unfinished" in rows["10"] and "2" in rows["10"]
    assert "tiny-llama" not in printed  # the same in all
    assert "job 3 failed: EngineError: the engine died" in printed
    assert {key: found[key] for key in ("jobs", "done", "failed", "unfinished")} == {
        "jobs": 5,
        "done": 3,
        "failed": 1,
        "unfinished": 1,
    }
    assert found["best"] == {
        "job": "2",
        "overrides": {"update.lr": "1e-3", "seed": "1"},
        "metric": "val/loss",
        "value": 0.3,
    }
    assert Path(found["figure"]).read_bytes().startswith(b"\x89PNG")


def test_a_sweep_where_nothing_is_done_has_no_figure(tmp_path: Path, capsys):
    failed(tmp_path / "0", "seed=1")
    job(tmp_path / "1", "seed=2")
    _, found = report(tmp_path, capsys)
    assert (found["best"], found["figure"]) == (None, None)


@pytest.mark.parametrize("name", ["empty", "nowhere"])
def test_a_folder_without_jobs_is_refused(tmp_path: Path, capsys, name: str):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path / name)])
    assert stop.value.code == 2
    assert str(tmp_path / name) in capsys.readouterr().err


def test_an_accuracy_is_best_when_high(tmp_path: Path):
    job(tmp_path / "0", "seed=1", loss=0.2, metric="val/accuracy")
    job(tmp_path / "1", "seed=2", loss=0.9, metric="val/accuracy")
    best = best_job(read_jobs(tmp_path))
    assert best is not None and best.name == "1"


def test_a_failure_of_a_second_start_counts(tmp_path: Path):
    """A job that was done, went on and failed."""
    job(tmp_path / "0", "seed=1", loss=0.2)
    (tmp_path / "0" / "FAILED").write_text(yaml.safe_dump({"overrides": [], "error": "E", "message": "m"}))
    assert [found.status for found in read_jobs(tmp_path)] == ["failed"]


def test_seeds_are_averaged_and_the_longer_axis_lies_along_x(sweep: Path):
    jobs = read_jobs(sweep)
    assert figure_axes(jobs) == ("update.lr", [])
    assert curves(jobs, "loss", "update.lr", []) == {"": {"1e-4": [0.6, 0.4], "1e-3": [0.3]}}


def test_two_settings_make_lines_and_a_search_makes_points():
    def made(rank: object, lr: object) -> Job:
        return Job(name="0", overrides={"direction.rank": str(rank), "update.lr": str(lr)}, steps=1)

    grid = [made(rank, lr) for rank in (1, 2) for lr in (1, 2, 3)]
    assert figure_axes(grid) == ("update.lr", ["direction.rank"])
    search = [made(number / 100, number / 7) for number in range(20)]
    assert figure_axes(search) == ("direction.rank", [])


def test_only_seeds_are_an_axis_of_their_own(tmp_path: Path, capsys):
    for number in range(3):
        job(tmp_path / str(number), f"seed={number}", loss=0.2)
    assert figure_axes(read_jobs(tmp_path)) == ("seed", [])
    assert report(tmp_path, capsys)[1]["figure"]


def test_a_search_is_drawn_on_a_scale(tmp_path: Path, capsys):
    for number in range(12):
        job(tmp_path / str(number), f"update.lr={10 ** -(number / 3)}", f"query.eps={number / 100}", loss=0.2)
    assert report(tmp_path, capsys)[1]["figure"]
