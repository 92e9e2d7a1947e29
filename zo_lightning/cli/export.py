"""``zo-export``: write what a checkpoint has learned as a PEFT adapter or a merged model. No engine is opened."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import DictConfig

from zo_lightning.cli.errors import reported
from zo_lightning.cli.overrides import with_saved_overrides
from zo_lightning.cli.rebuilding import named_checkpoint
from zo_lightning.cli.terminal import quiet_libraries
from zo_lightning.config import instantiate, register
from zo_lightning.errors import ConfigError

if TYPE_CHECKING:
    from zo_lightning.export import Learned

register()


def main() -> None:
    """Compose with the run's own overrides first, so that ``ckpt_path``, ``format`` and ``out`` are enough."""
    with reported():
        sys.argv[1:] = with_saved_overrides(sys.argv[1:])
        _main()


@hydra.main(version_base="1.3", config_path="pkg://zo_lightning.conf", config_name="export")
def _main(config: DictConfig) -> None:
    run(config)


def run(config: DictConfig) -> None:
    """Write the export, then print a card and one line of JSON."""
    with reported():
        check_out(config)
        quiet_libraries()
        with named_checkpoint(config) as (checkpoint, name):
            about = export(config, checkpoint, name)
        print(json.dumps(about))


def check_out(config: DictConfig) -> None:
    """Raise ``ConfigError`` if there is no folder to write into."""
    if config.out is None:
        raise ConfigError("`out` is missing: name the folder to write")


def export(config: DictConfig, checkpoint: Path, name: str) -> dict[str, Any]:
    """Write an export and print its card.

    Args:
        config: the run's, with ``format`` and ``out``.
        checkpoint: what is exported.
        name: how to call it.

    Returns:
        What was written, as plain values.
    """
    out = Path(config.out).expanduser().absolute()
    with whole_folder(out) as folder:
        about = {"format": config.format.value, **_write(config, checkpoint, folder), "checkpoint": name}
        (folder / "zo_lightning.json").write_text(json.dumps(about, indent=2) + "\n")
    _print_card(about, out)
    return {"out": str(out), **about}


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder beside ``out`` to write into, which takes its place at the end: a failed export leaves nothing.

    Raises:
        ConfigError: if ``out`` is a file or a folder that is not empty, or cannot be written.
    """
    from safetensors import SafetensorError

    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise ConfigError(f"`out={out}` is there already: name a new folder, or empty that one")
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of an export that was killed
    try:
        partial.mkdir(parents=True)
        yield partial
        for path in partial.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)  # safetensors' are their owner's alone
        partial.replace(out)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"`out={out}` cannot be written: {error}; make room or name another folder") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(config: DictConfig, checkpoint: Path, folder: Path) -> dict[str, Any]:
    from zo_lightning import export

    learned = _learned(config, checkpoint)
    return {"peft": export.write_adapter, "merged": export.write_merged}[config.format.value](folder, learned)


def _learned(config: DictConfig, checkpoint: Path) -> Learned:
    from zo_lightning.cli.session import build_method, prepared_model
    from zo_lightning.export import read_checkpoint

    method, _ = build_method(config, instantiate(config.backend).capabilities)
    model = prepared_model(config)
    path = config.model.path
    from_hub = path is not None and not Path(path).expanduser().exists()
    return read_checkpoint(
        checkpoint,
        name=path if from_hub else str(model.folder),
        revision=config.model.revision if from_hub else None,
        layout=model.layout,
        method=method,
    )


def _print_card(about: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

    files = sorted(out.iterdir())
    size = sum(path.stat().st_size for path in files)
    table = Table(box=None, pad_edge=False, show_header=False)
    facts = [
        ("base", about["base"]),
        ("base digest", about["base_digest"][:16]),
        ("steps", str(about["steps"])),
        ("rank", str(about["rank"])),
        ("written to", str(out)),
        ("", f"{', '.join(path.name for path in files)} ({size / 1e6:.1f} MB)"),
    ]
    for name, value in facts:
        table.add_row(name, value)
    Console().print(Panel(table, title=f"exported as {about['format']}", expand=False))
    if about["format"] == "merged" or about["max_lora_rank"]:
        print(f"serve it with\n  {_serve_command(about, out)}")


def _serve_command(about: dict[str, Any], out: Path) -> str:
    import torch

    from zo_lightning.export import WITHOUT_GPU, serve_adapter_command, serve_command

    merged = about["format"] == "merged"
    command = serve_command(str(out), about) if merged else serve_adapter_command(str(out), about)
    return command if torch.cuda.is_available() else f"{WITHOUT_GPU} {command}"


if __name__ == "__main__":
    main()
