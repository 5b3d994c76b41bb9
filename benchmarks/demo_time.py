"""Time ``make demo`` in a fresh clone: installation, the first page with learning curves, and the whole demo.

    python -m benchmarks.demo_time

The machine should be idle otherwise. The record, ``records/demo-time.json``, counts the last two from the moment
when the installation is over.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from antiphase.base.records import PAGE, Record

ROOT = Path(__file__).resolve().parent.parent
POLL = 0.2
"""Seconds between two looks at the folder."""


def main() -> int:
    """Time one demo, write the record; the demo's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=ROOT / "records", help="folder for the record")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="antiphase-demo-") as scratch:
        clone = Path(scratch) / "antiphase"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        seen, code = timed(clone)
    if code:
        return code
    values = {
        "load": load,
        "installation": seen["installed"],
        "first_page": seen["page"] - seen["installed"],
        "demo": seen["end"] - seen["installed"],
    }
    record = Record(kind="demo-time", values=values, seconds=seen["end"])
    sys.stdout.write(f"{record.save(given.records, 'demo-time')}: {values}\n")
    return 0


def timed(clone: Path) -> tuple[dict[str, float], int]:
    """Seconds from the start to each event, and the exit code."""
    demo = clone / "runs/demo"
    events = {"installed": demo, "page": demo / PAGE}
    seen: dict[str, float] = {}
    started = time.monotonic()
    with subprocess.Popen(["make", "demo"], cwd=clone) as process:
        while process.poll() is None:
            time.sleep(POLL)
            for name, path in events.items():
                if name not in seen and path.exists():
                    seen[name] = time.monotonic() - started
    return {**seen, "end": time.monotonic() - started}, process.returncode


if __name__ == "__main__":
    sys.exit(main())
