"""Every architecture of the installed transformers × every property, in fp32 and fp64.

    python tests/zoo/run.py --output records         # all; the same command continues a run that was stopped
    python tests/zoo/run.py --only llama bart             # these, without a record

A cell is equal, refused by a sentence that names the model, or listed in ``known.yaml`` with transformers' own fault.
Anything else fails, and so does an entry of the list that is not needed any more.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
import warnings
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from antiphase.base.errors import InputError  # noqa: E402  # the same
from antiphase.base.folders.journal import Journal  # noqa: E402  # the same
from antiphase.base.records import Record, environment  # noqa: E402  # the same
from zoo.architectures import FAMILIES  # noqa: E402  # found by the line above
from zoo.cells import row  # noqa: E402  # the same

RIGHT = ("equal", "refused")
"""States of a cell that need no entry in the list."""


def main() -> int:
    """Run, compare with the list, write the record; 1 if anything differs from the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="TYPE", help="model types")
    parser.add_argument("--output", type=Path, help="folder for the record of a whole run")
    given = parser.parse_args()
    every = [(family, name) for family, found in FAMILIES.items() for name in found.names]
    chosen = [place for place in every if given.only is None or place[1] in given.only]
    if given.only and (unknown := set(given.only) - {name for _, name in every}):
        parser.error(f"--only {min(unknown)}: transformers {version('transformers')} has no such architecture")
    if given.only and given.output:
        parser.error("--output keeps a whole run; leave --only out")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    try:
        journal = None if given.output is None else begun(given.output / "unfinished" / "zoo")
    except InputError as error:
        parser.error(str(error))
    rows, seconds, processor = [], 0.0, 0.0
    for place in chosen:
        found = kept(journal, *place)
        rows.append(found["row"])
        seconds += found["seconds"]
        processor += found["processor"]
        print(*place, summary(found["row"]), f"{found['seconds']:.1f} s", flush=True)  # noqa: T201  # progress
    said = apply(yaml.safe_load((FOLDER / "known.yaml").read_text(encoding="utf-8")) or [], rows)
    print("\n".join(said) or "nothing differs from the list")  # noqa: T201  # its result
    if given.output is not None:
        values = {"rows": rows, "surprises": said, "processor_seconds": processor}
        config = {"transformers": version("transformers")}
        print(Record(kind="zoo", values=values, config=config, seconds=seconds).save(given.output, "zoo"))  # noqa: T201  # its path
        shutil.rmtree(given.output / "unfinished" / "zoo")
    return int(bool(said))


def begun(folder: Path) -> Journal:
    """Rows of the architectures that a stopped run has finished.

    Raises:
        InputError: they are of another revision or another transformers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = Journal(folder, lambda: {"revision": environment()["revision"], "transformers": version("transformers")})
    found.begin()
    return found


def kept(journal: Journal | None, family: str, name: str) -> dict[str, Any]:
    """The row of an architecture, and the seconds that it took by the clock and of the processor."""
    key = None if journal is None else journal.key(family, name)
    if journal is not None and key in journal.known:
        return journal.known[key]
    started, busy = time.perf_counter(), time.process_time()
    found: dict[str, Any] = {"row": row(family, name)}
    found |= {"seconds": time.perf_counter() - started, "processor": time.process_time() - busy}
    if journal is not None:
        journal.add(key, found)
    return found


def summary(of: dict[str, Any]) -> str:
    """How many cells are in which state."""
    counts = Counter(one["state"] for by_dtype in of["cells"].values() for one in by_dtype.values())
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def apply(known: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[str]:
    """Mark listed cells in the rows, "listed" with the reason; what differs from the list, a sentence each.

    An entry has ``why``, ``names`` and ``cells``, and applies to both number formats or to that of ``dtype``.
    """
    said: dict[tuple[str, ...], list[str]] = {}
    needed = set()
    for of in rows:
        for cell, by_dtype in of["cells"].items():
            for dtype, found in by_dtype.items():
                if found["state"] in RIGHT:
                    continue
                entry = next((one for one in known if applies(one, of["name"], cell, dtype)), None)
                if entry is None:
                    what = found.get("why") or f"difference {found['difference']:.1g}"
                    said.setdefault((of["family"], of["name"], found["state"], what), []).append(f"{cell} {dtype}")
                else:
                    needed.add((entry["why"], of["name"]))
                    by_dtype[dtype] = {"state": "listed", "why": entry["why"]}
    names = {of["name"] for of in rows}
    listed = {(entry["why"], name) for entry in known for name in entry["names"] if name in names}
    sentences = [
        f"{family} {name}: {state} ({', '.join(cells)}): {what}" for (family, name, state, what), cells in said.items()
    ]
    return sentences + [
        f"{name} is listed ({why}) and needs no entry; remove it" for why, name in sorted(listed - needed)
    ]


def applies(entry: dict[str, Any], name: str, cell: str, dtype: str) -> bool:
    """Whether an entry of the list is about a cell."""
    return (
        name in entry["names"]
        and (entry["cells"] == "all" or cell in entry["cells"])
        and entry.get("dtype", dtype) == dtype
    )


if __name__ == "__main__":
    sys.exit(main())
