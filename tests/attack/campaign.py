"""``make attack``: kills, disk faults and damaged inputs for every command and reader; its record says what was lost.

``--minute`` is a short form, which the slow tests run. ``--only`` runs one part, and its result takes the place of the
former one in the record. ``--seed`` repeats a campaign: it decides everything but the moments' exact instants. What a
try found is kept beside the record until its part is finished: ``--minutes`` ends a sitting, and the same command, at
the same revision, goes on, after a kill too.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import math
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from attack import disk, fuzz, programs, stops, targets  # noqa: E402 – found by the line above

from antiphase.base.errors import InputError, Interrupted  # noqa: E402 – after it, as isort has it
from antiphase.base.folders.journal import Journal  # noqa: E402 – likewise
from antiphase.base.records import Record, environment, finite  # noqa: E402 – likewise

FULL = {"kills": 250, "torchrun": 50, "faults": 200, "inputs": 10_000}
MINUTE = {"kills": 4, "torchrun": 0, "faults": 6, "inputs": 30}
"""Kills of single processes and studies, kills with torchrun, disk faults, inputs for each reader."""
QUICK = ("train", "convert", "evaluate perplexity")
"""Targets of the short form."""
COLD_SHARE = 0.1
"""Share of tries whose runs are not forked, so that the kill may come while libraries are imported."""

Try = Callable[[targets.Target, stops.Undisturbed, Path, random.Random], stops.Outcome]


class Campaign:
    """The parts of a campaign, and what they found."""

    def __init__(self, folder: Path, seed: int, minutes: float) -> None:
        self.folder, self.seed = folder, seed
        self.inputs = folder / "inputs"
        self.known: dict[str, stops.Undisturbed] = {}
        self.wrong: list[str] = []
        self.end = time.monotonic() + 60 * minutes
        self.journal: Journal | None = None
        """What the tries of this part found; None if no record is written."""
        self.seconds = 0.0
        """How long these tries took, in all sittings."""

    def kept(self, part: object, make: Callable[[], Any]) -> Any:
        """What a part of the work found, in an earlier sitting or now, as JSON has it.

        Raises:
            Interrupted: the sitting is over.
        """
        if self.journal is None:
            return finite(make())
        key = self.journal.key(part)
        if key not in self.journal.known:
            if time.monotonic() > self.end:
                raise Interrupted("the minutes are over; the same command goes on")
            started = time.perf_counter()
            found = make()
            self.journal.add(key, {"found": found, "seconds": time.perf_counter() - started})
        self.seconds += self.journal.known[key]["seconds"]
        return self.journal.known[key]["found"]

    def prepare(self) -> None:
        """Write the inputs, in a process of its own: a process that has computed with torch must not fork."""
        pid = os.fork()
        if not pid:
            targets.make_inputs(self.inputs)
            os._exit(0)
        os.waitpid(pid, 0)
        classify = ["classify", "--train", str(self.inputs / "rows.txt"), "--model", "cnn", "--set", "epochs=2"]
        train = ["train", "--preset", str(self.inputs / "tiny.yaml")]
        for words, name in (
            (train, "run"),
            ([*train, "--set", "model.attention_type=softmax"], "softmax"),
            (classify, "classified"),
        ):
            run = programs.start_warm([*words, "--output", str(self.inputs / name)], self.inputs, self.folder / "log")
            run.wait()
            assert run.code == 0, run.said

    def kills(self, chosen: Sequence[targets.Target], count: int) -> list[dict[str, Any]]:
        """Until ``count`` runs were stopped."""

        def attempt(target: targets.Target, whole: stops.Undisturbed, folder: Path, draw: random.Random) -> Any:
            return stops.attempt(target, whole, folder, draw, warm=target.cold or draw.random() > COLD_SHARE)

        return self._table(chosen, count, lambda target: [attempt])

    def faults(self, chosen: Sequence[targets.Target], count: int) -> list[dict[str, Any]]:
        """Until ``count`` faults were met."""
        ways: list[Try] = [disk.small_files]
        if hasattr(ctypes.CDLL(None), "attack_arm"):
            ways += [disk.failing_call] * 3
        if disk.can_mount(self.folder):
            ways.append(disk.small_disk)
        warm = [target for target in chosen if not target.cold]

        def fitting(target: targets.Target) -> list[Try]:
            return [way for way in ways if way != disk.small_disk or target.name not in ("convert", "torchrun")]

        return self._table(warm, count, fitting)

    def _table(
        self, chosen: Sequence[targets.Target], count: int, ways: Callable[[targets.Target], list[Try]]
    ) -> list[dict[str, Any]]:
        """A row for each target: tries, stops by their way, and what was lost."""
        rows = {target.name: {"target": target.name, "tries": 0, "stops": 0, "lost": 0} for target in chosen}
        by_way: dict[str, Counter[str]] = {target.name: Counter() for target in chosen}
        met = tries = 0
        while chosen and met < count and tries < 4 * count:
            target = chosen[tries % len(chosen)]
            tries += 1
            outcome = stops.Outcome(**self.kept(tries, functools.partial(self._tried, target, ways(target), tries)))
            row, happened = rows[target.name], len(outcome.stops)
            row["tries"] += 1
            row["stops"] += happened
            row["lost"] += bool(outcome.wrong)
            met += happened
            print(f"{target.name}: {met} of {count}", flush=True)  # noqa: T201 – progress
            by_way[target.name].update(how.split(" at call")[0].split(" of ")[0] for how in outcome.stops)
            for words in outcome.wrong:
                self.wrong.append(f"{target.name} ({'; '.join(outcome.stops)}): {words}")
                print(f"LOST {self.wrong[-1]}", flush=True)  # noqa: T201 – progress
        return [{**row, "ways": dict(by_way[name])} for name, row in rows.items()]

    def _tried(self, target: targets.Target, ways: Sequence[Try], number: int) -> stops.Outcome:
        """The try of this number, which its seed and number decide."""
        if target.name not in self.known:
            self.known[target.name] = stops.undisturbed(target, self.folder)
        draw = random.Random(f"{self.seed} {number}")
        return draw.choice(ways)(target, self.known[target.name], self.folder, draw)


def main() -> int:
    """Run the campaign and write its record; 1 if anything was lost."""
    given = arguments()
    if not hasattr(ctypes.CDLL(None), "attack_arm") and given.only != "inputs":
        with TemporaryDirectory() as folder:
            if (library := programs.build_shim(Path(folder))) is not None:
                variables = {**os.environ, "LD_PRELOAD": str(library), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
                return subprocess.run([sys.executable, *sys.argv], env=variables, check=False).returncode
    if given.target is not None and given.output is not None:
        print("--target tries one command or reader, and --output keeps whole parts; leave one out")  # noqa: T201 – why
        return 2
    sizes = {**(MINUTE if given.minute else FULL)}
    sizes = {name: getattr(given, name) if getattr(given, name) is not None else sizes[name] for name in sizes}
    if given.only != "inputs":
        programs.warm_up()
    wrong: list[str] = []
    with TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder), given.seed, given.minutes)
        parts = [given.only] if given.only else [name for name, size in sizes.items() if size]
        for part in parts:
            campaign.seconds = 0.0
            try:
                if given.output is not None:
                    campaign.journal = journal(unfinished(given.output, part), sizes[part], given.seed)
                rows = attack(campaign, part, sizes[part], given)
            except (InputError, Interrupted) as error:
                print(error)  # noqa: T201 – why it goes no further
                return 130 if isinstance(error, Interrupted) else 2
            if not rows:
                print(f"--target {given.target}: {part} has no such target")  # noqa: T201 – the reason
                return 2
            if part != "inputs" and (met := sum(row["stops"] for row in rows)) < sizes[part]:
                campaign.wrong.append(f"{part}: {met} of {sizes[part]} happened in four times as many tries")
            found = {
                "size": sizes[part], "seed": given.seed, "revision": environment()["revision"], "rows": rows,
                "wrong": campaign.wrong, "seconds": campaign.seconds,
            }  # fmt: skip
            if given.output is not None:
                print(keep(given.output, part, found))  # noqa: T201 – the path of the result
            wrong, campaign.wrong = wrong + campaign.wrong, []
    if given.output is not None:
        for part in parts:
            shutil.rmtree(unfinished(given.output, part))
    print(f"{len(wrong)} lost" if wrong else "nothing was lost")  # noqa: T201 – the result
    return int(bool(wrong))


def unfinished(output: Path, part: str) -> Path:
    """The folder of what the tries of a part found, until all parts of the command are finished."""
    return output / "unfinished" / f"attack-{part}"


def journal(folder: Path, size: int, seed: int) -> Journal:
    """What the tries of a part found so far.

    Raises:
        InputError: those in the folder are of another size, seed or revision.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = Journal(folder, lambda: {"size": size, "seed": seed, "revision": environment()["revision"]})
    found.begin()
    return found


def keep(folder: Path, part: str, found: dict[str, Any]) -> Path:
    """Put the result of a part into the record, beside those of the other parts."""
    path = folder / "attack.json"
    values = (Record.load(path).values if path.is_file() else {}) | {part: found}
    values = {name: values[name] for name in FULL if name in values}
    record = Record(kind="attack", values=values, seconds=sum(one["seconds"] for one in values.values()))
    return record.save(folder, "attack")


def attack(campaign: Campaign, part: str, size: int, given: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of a part of the campaign."""
    if part == "inputs":
        rows = fuzz.all_readers(campaign.folder / "fuzz", size, given.seed, given.target, campaign.kept)
        campaign.wrong += [line for row in rows for line in row["wrong"]]
        return rows
    if not campaign.inputs.is_dir():
        campaign.prepare()
    every = targets.targets(campaign.inputs)
    if given.target:
        every = [target for target in every if target.name == given.target]
    elif given.minute:
        every = [target for target in every if target.name in QUICK]
    chosen = [target for target in every if (target.processes > 1) == (part == "torchrun")]
    return campaign.faults(chosen, size) if part == "faults" else campaign.kills(chosen, size)


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minute", action="store_true", help="a few tries of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=tuple(FULL), help="one part")
    parser.add_argument("--target", help="one command or reader")
    for name in FULL:
        parser.add_argument(f"--{name}", type=int, help="number of tries")
    parser.add_argument("--output", type=Path, help="folder of the record, attack.json")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no try after so many")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
