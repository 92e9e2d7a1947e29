"""The README's Python runs as it stands there."""

from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_python_example_runs(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = [part.split("```")[0] for part in README.read_text().split("```python\n")[1:]]
    (code,) = (block for block in blocks if "Trainer(" in block)
    names: dict[str, object] = {}
    exec(code, names)
    module = names["module"]
    assert module.trainer.global_step == 3  # type: ignore[attr-defined]
