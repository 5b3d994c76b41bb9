"""How many pairs of models fit into the time, and how long each is trained; arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from antiphase.errors import InputError

LEAST_SHARE = 0.25
"""Of the wanted steps: a run is not made shorter than that to have more pairs."""
RESERVE = 1.1
"""By which what was measured in the pilot may take longer."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What the pilot has measured."""

    alone: Mapping[str, float]
    """Tokens a second of each arm while nothing else runs."""
    together: float
    """Tokens a second of both arms of a pair, added up, while they run side by side."""
    start: float
    """Seconds of a run besides its steps: a process that starts, evaluations, and writing."""
    measuring: float
    """Seconds in which both models of a pair are measured."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a call trains."""

    steps: int
    """Of each run."""
    processes: int
    """Runs of a pair side by side: 1 or 2."""
    pair_seconds: float
    """Training and measuring of a pair."""
    pairs: int
    """In one call."""


def pair_seconds(pace: Pace, tokens: int, arms: tuple[str, str]) -> tuple[float, int]:
    """Seconds of a pair of so many tokens a run, and how many of its runs go side by side: what is quicker."""
    one_by_one = sum(tokens / pace.alone[arm] + pace.start for arm in arms)
    at_once = 2 * tokens / pace.together + pace.start
    processes = 2 if at_once < one_by_one else 1
    return RESERVE * (min(one_by_one, at_once) + pace.measuring), processes


def plan(
    pace: Pace, *, minutes: float, calls: int, steps: int, step_tokens: int, fewest: int, arms: tuple[str, str]
) -> Plan:
    """As many complete pairs per call as fit; shorter runs only if not even ``fewest`` fit into all calls.

    Args:
        minutes: of a call, what it spares already taken off.
        calls: that train pairs.
        steps: wanted of each run.
        step_tokens: tokens of a step.

    Raises:
        InputError: not one pair fits.
    """

    def planned(count: int) -> Plan:
        seconds, processes = pair_seconds(pace, count * step_tokens, arms)
        return Plan(steps=count, processes=processes, pair_seconds=seconds, pairs=int(60 * minutes // seconds))

    least = max(1, round(LEAST_SHARE * steps))
    for wanted in (fewest, 1):
        for count in range(steps, least - 1, -1):
            found = planned(count)
            if found.pairs and calls * found.pairs >= wanted:
                return found
    needed = planned(least).pair_seconds
    raise InputError(
        f"--set training.steps={steps} is too much: by the pilot one pair of even {least} steps takes "
        f"{needed / 60:.1f} minutes, and a call has {minutes:.1f}; set fewer"
    )
