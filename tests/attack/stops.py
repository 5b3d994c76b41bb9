"""Commands that are killed or interrupted, resumed, and compared bit by bit with undisturbed runs."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from attack.programs import LONGEST, Fault, Run, ranks, start_cold, start_warm
from attack.targets import Target, fresh, leftovers, result_of

WAYS = ("at a moment", "at a write", "one process", "Ctrl-C", "Ctrl-C twice")
"""How a run is stopped: SIGKILL of all its processes at a random moment or within a random write, SIGKILL of one of
them, SIGINT, SIGINT a second time within half a second.
"""


EXISTS = "exists and is not empty"
"""What a command says that cannot be resumed and finds its result."""


@dataclass
class Undisturbed:
    """A run that nothing befell."""

    seconds: float
    calls: int
    """Of the shim; 0 where they were not counted."""
    result: dict[str, str]


@dataclass
class Outcome:
    """What became of one try: a command that is stopped, perhaps several times, and then finished."""

    target: str
    stops: list[str] = field(default_factory=list)
    """The ways in which it was stopped, without those that came too late."""
    wrong: list[str] = field(default_factory=list)
    """What was lost, or needed a person."""


def start(target: Target, here: Path, place: Path, *, again: bool = False, fault: Fault | None = None) -> Run:
    """Begin a run of a command, or go on with it."""
    words = target.command(again=again)
    if target.cold:
        return start_cold(words, here, place, fault, processes=target.processes)
    return start_warm(words, here, place, fault)


def undisturbed(target: Target, folder: Path) -> Undisturbed:
    """Run a command in peace.

    Raises:
        RuntimeError: it fails.
    """
    here = fresh(folder / "here")
    run = start(target, here, folder / "log")
    run.wait()
    if run.code != 0:
        run.end_group()
        raise RuntimeError(f"{target.name} does not even work undisturbed: {run.said[-500:]}")
    return Undisturbed(run.seconds, run.calls, result_of(here))


def attempt(
    target: Target, whole: Undisturbed, folder: Path, draw: random.Random, *, most: int = 3, warm: bool = True
) -> Outcome:
    """Stop a command up to ``most`` times, finish it, and compare."""
    here, outcome = fresh(folder / "here"), Outcome(target.name)
    for number in range(draw.randint(1, most)):
        way = draw.choice(WAYS)
        if way == "at a write" and not whole.calls:
            way = "at a moment"
        fault = Fault(call=draw.randint(1, whole.calls)) if way == "at a write" else None
        if warm:
            run = start(target, here, folder / "log", again=number > 0, fault=fault)
        else:  # imports too
            run = start_cold(target.command(again=number > 0), here, folder / "log", fault, processes=target.processes)
        _judge(run, way, outcome, was_stopped=_stop(run, way, whole.seconds, draw))
        if run.code == 0:
            break
    if run.code != 0 or target.resumable:
        finish(target, whole, here, folder, outcome)
    else:
        compare(whole, here, outcome)
    return outcome


def finish(target: Target, whole: Undisturbed, here: Path, folder: Path, outcome: Outcome) -> None:
    """Go on without disturbance, and compare."""
    run = start(target, here, folder / "log", again=True)
    run.wait()
    if run.code != 0 and (target.resumable or EXISTS not in run.said):
        run.end_group()
        outcome.wrong.append(f"does not go on: code {run.code}, {run.said[-400:]}")
    else:  # it had finished when it was stopped, or has now
        compare(whole, here, outcome)


def compare(whole: Undisturbed, here: Path, outcome: Outcome) -> None:
    """Note what differs from an undisturbed run, and what is left over."""
    found = result_of(here)
    differing = sorted(name for name in {**found, **whole.result} if found.get(name) != whole.result.get(name))
    if differing:
        outcome.wrong.append(f"differs in {', '.join(differing[:4])}")
    if left := leftovers(here):
        outcome.wrong.append(f"leaves {', '.join(left[:4])}")


def _stop(run: Run, way: str, seconds: float, draw: random.Random) -> bool:
    """Whether the run was stopped, and did not end by itself before."""
    if way == "at a write":
        run.wait()
        run.end_group()
        return True
    if run.wait(draw.uniform(0.02, 1.0) * seconds):
        return False
    if way.startswith("Ctrl-C"):
        run.signal(signal.SIGINT)
        if way.endswith("twice") and not run.wait(time.monotonic() - run.started + draw.uniform(0.0, 0.5)):
            run.signal(signal.SIGINT)
        run.wait()
    elif way == "one process":
        found = ranks(run)
        if found:  # the launcher ends the others
            run_of_one = found[draw.choice(sorted(found))]
            _kill(run_of_one)
            run.wait()
        else:
            run.signal(signal.SIGKILL, whole=False)
            run.wait()
            if draw.random() < 0.5:  # runs that a killed study leaves behind go on, or end as well
                run.end_group()
    else:
        run.end_group()
    return True


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, signal.SIGKILL)


def _judge(run: Run, way: str, outcome: Outcome, *, was_stopped: bool) -> None:
    """Note how the run ended, and what is wrong with that."""
    if run.code is None:
        run.end_group()
        outcome.wrong.append(f"hangs for {LONGEST:g} s, {way}")
        return
    if run.code == 0 or (not way.startswith("Ctrl-C") and run.code == 130):
        return  # the stop came too late
    if not was_stopped:  # a repeated command may find its whole result; anything else is a crash
        if EXISTS not in run.said:
            outcome.wrong.append(f"ends by itself with code {run.code}: {run.said[-400:]}")
        return
    outcome.stops.append(way)
    if "Traceback" in run.said and way == "Ctrl-C" and outcome.target != "torchrun":  # whose launcher always shows one
        outcome.wrong.append(f"shows a traceback, {way}: {run.said[-600:]}")
