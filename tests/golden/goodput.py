"""Golden estimates of the simulator of goodput, and rows of its table: what makes them, and writes the file.

``python -m tests.golden.goodput`` in the project's root writes it anew; ``README.md`` here says when that is right.
"""

from __future__ import annotations

import sys
from dataclasses import astuple
from pathlib import Path

from zo_lightning.goodput.failures import Failures
from zo_lightning.goodput.model import Job
from zo_lightning.goodput.scenario import Scenario, Tier
from zo_lightning.goodput.simulator import simulate
from zo_lightning.goodput.tables import cells, row

FILE = Path(__file__).with_name("goodput.txt")
FAILURES, SEED = 1000, 6
TITLE = (
    f"# goodput: name, shares, their errors, steps lost, seconds; {FAILURES} failures, seed {SEED}; "
    "rows as they are printed"
)
LARGE = Job(devices=65_536)
RACKS = Failures(rack_mtbf_hours=20_000, switch_mtbf_hours=50_000)
TIERS = (
    Tier(name="local", every=30, drain_steps=4, tax=0.01, load_seconds=5, survives_device=0.4, survives_rack=0.0),
    Tier(name="peer", every=50, drain_steps=10, survives_device=0.9, survives_switch=0.1, load_seconds=20),
    Tier(name="remote", every=700, drain_steps=200, tax=0.005, load_seconds=120),
)
SCENARIOS = {
    "newest": Scenario(k=30),
    "none": Scenario(k=52, target="none"),
    "blocking": Scenario(k=307, target="blocking"),
    "early-credit": Scenario(k=10, target="none", legacy_credit=True),
    "weibull": Scenario(k=52, failures=Failures(law="weibull", shape=0.7)),
    "lognormal": Scenario(k=52, failures=Failures(law="lognormal", shape=1.3)),
    "trace": Scenario(k=40, failures=Failures(law="trace", trace=(10.0, 0.0, 4000.0, 900.5, 210.0))),
    "tiers": Scenario(job=LARGE, k=30, target="median", failures=RACKS, tiers=TIERS),
    "spares": Scenario(job=LARGE, k=52, target="oldest", failures=RACKS, spares=70, repair_seconds=30_000),
    "stragglers": Scenario(k=52, straggler_share=0.1, straggler_slowdown=1.7),
}


def text() -> str:
    """The file as it should be."""
    lines = [TITLE]
    for name, scenario in SCENARIOS.items():
        found = simulate(scenario, failures=FAILURES, seed=SEED)
        numbers = (*astuple(found.shares), *astuple(found.errors), found.steps_lost, found.seconds)
        lines.append(" ".join([name, *(float(number).hex() for number in numbers)]))
    for scenario in (*cells(Scenario(k=1)), *SCENARIOS.values()):
        found = row(scenario, failures=FAILURES, seed=SEED)
        lines.append(" ".join(["row", *map(str, astuple(found))]))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["print"]:
        print(text(), end="")
    else:
        FILE.write_text(text())
