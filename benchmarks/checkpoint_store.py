"""What snapshots of a growing factor bank cost: training's wait, the background save, and a restore that checks all.

    python benchmarks/checkpoint_store.py [--rows 155520] [--rank 2] [--stages 40] [--folder outputs/checkpoint_store]

One slot is added a stage, as in a run that snapshots at each stage's end. The bank of SmolLM2-135M has 155,520 rows. A
table and a picture, then one line of JSON with medians in milliseconds and the bytes of all saves together.

Shape suffixes: O rows stacked over all matrices, C rank columns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

from zo_lightning.bench.report import Report, bars, three_digits
from zo_lightning.checkpoint.background import BackgroundSaver, detached_copy
from zo_lightning.checkpoint.store import Store

T = TypeVar("T")


def main() -> None:
    """Save, restore and verify, stage by stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=155_520)
    parser.add_argument("--rank", type=int, default=2)
    parser.add_argument("--stages", type=int, default=40)
    parser.add_argument("--folder", type=Path, default=Path("outputs/checkpoint_store"))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        report(args, *run(args, Path(place))).publish(args.folder, "checkpoint_store")


def run(args: argparse.Namespace, place: Path) -> tuple[dict[str, list[float]], int, int]:
    """Milliseconds of every operation, and bytes written and reused."""
    left_CO = torch.randn(args.stages * args.rank, args.rows)
    store, saver = Store([place / "store"]), BackgroundSaver(Store([place / "background"]), patience=60)
    taken: dict[str, list[float]] = defaultdict(list)
    written = reused = 0
    for stage in range(args.stages):
        tree = {"left": left_CO[: (stage + 1) * args.rank].T}
        with_time(taken, "training waits", lambda tree=tree, step=stage: saver.submit(step, detached_copy(tree), ""))
        saver.drain(600)
        receipt = with_time(taken, "save", lambda tree=tree, step=stage: store.save(step, tree, ""))
        with_time(taken, "restore", lambda: store.load())
        written, reused = written + receipt.bytes_written, reused + receipt.bytes_reused
    saver.close(600)
    return taken, written, reused


def with_time(taken: dict[str, list[float]], name: str, work: Callable[[], T]) -> T:
    """Do it and note the milliseconds."""
    start = time.perf_counter()
    result = work()
    taken[name].append(1e3 * (time.perf_counter() - start))
    return result


def report(args: argparse.Namespace, taken: dict[str, list[float]], written: int, reused: int) -> Report:
    """Medians and bytes."""
    medians = {name: median(values) for name, values in taken.items()}
    whole = 4 * args.rows * args.rank * args.stages * (args.stages + 1) // 2  # had every save written everything
    return Report(
        title=f"{args.stages} snapshots of a bank with {args.rows:,} rows, {args.rank} columns a stage",
        columns=("", "median, ms", "longest, ms"),
        rows=[(name, three_digits(medians[name]), three_digits(max(values))) for name, values in taken.items()],
        facts={"milliseconds": medians, "bytes_written": written, "bytes_reused": reused, "bytes_whole": whole},
        draw=lambda axes: bars(axes, medians, "ms, median over the stages"),
        notes=[f"{written / 1e6:,.1f} MB written, {whole / 1e6:,.1f} MB without reuse"],
    )


if __name__ == "__main__":
    main()
