"""A job's life step by step, slow and by hand: what the simulator's arithmetic must come to on the same failures."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from zo_lightning.goodput import portable
from zo_lightning.goodput.failures import PHASES, draw_gaps, draw_kinds
from zo_lightning.goodput.rounds import destroyed
from zo_lightning.goodput.scenario import Scenario, Tier


@dataclass
class Place:
    """A tier: where its cycle is, and the steps it holds."""

    tier: Tier
    every: int
    drain: int
    tax: float
    save: float
    position: int = 0
    began: int | None = None
    holds: int | None = None

    def committed(self, target: str, now: int) -> int:
        """The step that a drain which ends now is brought to."""
        assert self.began is not None
        return {"newest": now, "median": now - self.drain // 2, "oldest": self.began + 1, "none": self.began}[target]


@dataclass
class Life:
    """Seconds by where they went, and what each failure took."""

    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("goodput", "rework", "restart", "tax", "stall", "idle"), 0.0)
    )
    lost: list[int] = field(default_factory=list)
    wall: float = 0.0


def _places(scenario: Scenario) -> list[Place]:
    places = []
    for tier in scenario.tiers or (Tier(name="all"),):
        every = tier.every or scenario.k
        drain = tier.drain_steps or scenario.job.drain_steps
        tax = scenario.job.tax if tier.tax is None else tier.tax
        save = scenario.job.save_seconds if tier.save_seconds is None else tier.save_seconds
        if scenario.target == "blocking":
            drain = 0
        elif scenario.legacy_credit:
            drain = min(drain, every)
        else:
            every = max(drain, every)
        places.append(Place(tier, every, drain, tax, save))
    return places


def _train(scenario: Scenario, places: list[Place], state: int, gap: float, life: Life) -> int:
    """One step after the other until the failure; the state it finds."""
    job, clock = scenario.job, 0.0
    usual = job.step_seconds / (1 - scenario.straggler_share * (1 - 1 / scenario.straggler_slowdown))
    while True:
        for place in places:
            if scenario.target != "blocking" and place.position == place.every - place.drain:
                place.began = state
        tax = usual * sum(place.tax for place in places if place.began is not None)
        part = min((gap - clock) / (usual + tax), 1.0)
        life.seconds["tax"] += part * tax
        life.seconds["stall"] += part * (usual - job.step_seconds)
        if clock + usual + tax > gap:
            life.seconds["rework"] += part * job.step_seconds
            return state
        clock, state = clock + usual + tax, state + 1
        for place in places:
            place.position += 1
            if place.position < place.every:
                continue
            if scenario.target == "blocking":
                life.seconds["stall"] += min(place.save, gap - clock)
                if clock + place.save > gap:
                    return state
                clock += place.save
                place.holds = state
            else:
                place.holds = place.committed(scenario.target, state)
            place.position, place.began = 0, None


def follow(scenario: Scenario, failures: int, seed: int) -> Life:
    """The whole life."""
    job, life, places = scenario.job, Life(), _places(scenario)
    gaps = draw_gaps(scenario.failures, scenario.mtbf, failures, seed)
    kinds = draw_kinds(scenario.failures, job, failures, seed)
    gone = destroyed([place.tier for place in places], kinds, seed)
    phases = portable.uniforms(seed, PHASES, failures)
    legacy = scenario.legacy_credit and scenario.target != "blocking"
    state, away = 0, []
    for place in places:
        place.holds = 0
    for index in range(failures):
        for place in places:
            place.began = None
            latest = place.every - max(place.drain, 1)
            place.position = latest if place.holds is None else min(state - place.holds, latest)
            if legacy:
                place.position = int(phases[index] * place.every)
                cycle = state - place.position
                stale = {"newest": 0, "median": place.drain // 2, "oldest": place.drain - 1, "none": place.drain}
                place.holds = cycle - stale[scenario.target]
                if place.position > place.every - place.drain:
                    place.began = cycle + place.every - place.drain
        reached = _train(scenario, places, state, gaps[index], life)
        life.wall += gaps[index]
        for place, lost in zip(places, gone, strict=True):
            if scenario.survives_in_flight and place.began is not None:
                place.holds = place.began
            if lost[index]:
                place.holds = None
        held = [(place.holds, place.tier.load_seconds) for place in places if place.holds is not None]
        newest = max((step for step, _ in held), default=0)
        load = next((seconds for step, seconds in held if step == newest), 0.0)
        life.lost.append(reached - newest)
        life.seconds["goodput"] += (newest - state) * job.step_seconds
        life.seconds["rework"] += (reached - newest) * job.step_seconds
        state = newest
        if scenario.spares is not None:
            size = (1, scenario.failures.rack_devices, scenario.failures.switch_devices)[kinds[index]]
            away += [life.wall + scenario.repair_seconds] * min(size, job.devices)
        life.wall += job.detection_seconds
        away = [back for back in away if back > life.wall]
        while scenario.spares is not None and len(away) > scenario.spares:
            first = min(away)
            life.seconds["idle"] += first - life.wall
            life.wall = first
            away = [back for back in away if back > first]
        life.wall += job.relaunch_seconds + load
        life.seconds["restart"] += job.restart_seconds + load
    return life


def shares(life: Life) -> np.ndarray:
    """In the order of ``Shares``."""
    return np.array(list(life.seconds.values())) / life.wall
