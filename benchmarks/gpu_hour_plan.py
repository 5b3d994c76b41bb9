"""Plans the GPU hour by arithmetic: how many pairs of models fit into the time, and how long each is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from antiphase.errors import InputError

LEAST_SHARE = 0.25
"""Smallest share of the wanted steps: runs are not made shorter than that for the sake of more pairs."""
RESERVE = 1.1
"""Safety factor on the times measured in the pilot."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Speeds measured in the pilot."""

    alone: Mapping[str, float]
    """Tokens per second of each arm running alone."""
    together: float
    """Total tokens per second of both arms of a pair running side by side."""
    start: float
    """Seconds of a run besides its steps: process start, evaluations, and writing."""
    measuring: float
    """Seconds to measure both models of a pair."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The training in one call."""

    steps: int
    """Steps of each run."""
    processes: int
    """Number of runs of a pair side by side: 1 or 2."""
    pair_seconds: float
    """Seconds to train and measure a pair."""
    pairs: int
    """Number of pairs in one call."""


def pair_seconds(pace: Pace, tokens: int, arms: tuple[str, str]) -> tuple[float, int]:
    """Seconds of a pair with the given tokens per run, and the faster number of runs side by side."""
    one_by_one = sum(tokens / pace.alone[arm] + pace.start for arm in arms)
    at_once = 2 * tokens / pace.together + pace.start
    processes = 2 if at_once < one_by_one else 1
    return RESERVE * (min(one_by_one, at_once) + pace.measuring), processes


def plan_training(
    pace: Pace, *, minutes: float, calls: int, steps: int, step_tokens: int, fewest: int, arms: tuple[str, str]
) -> TrainingPlan:
    """As many complete pairs per call as fit; shorter runs only if not even ``fewest`` fit into all calls.

    Args:
        minutes: minutes of a call, without those kept in reserve.
        calls: number of calls that train pairs.
        steps: wanted steps of each run.
        step_tokens: tokens per step.

    Raises:
        InputError: not one pair fits.
    """

    def planned(count: int) -> TrainingPlan:
        seconds, processes = pair_seconds(pace, count * step_tokens, arms)
        return TrainingPlan(steps=count, processes=processes, pair_seconds=seconds, pairs=int(60 * minutes // seconds))

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
