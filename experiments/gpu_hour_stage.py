"""Shared code of the stages of ``gpu_hour.py``: sizes, time limit, and a record that is complete after every piece."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from antiphase.base.errors import InputError
from antiphase.base.records import Record, environment, finite

SPARE = 20.0
"""Seconds that a stage keeps in reserve, for finishing its current work and for writing."""


ALWAYS = ("gate", "product rate")
"""Pieces that no option leaves out."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The options of a stage."""

    name: str
    records: Path
    """Folder of the stages' records, one small file each."""
    work: Path
    """Folder of logs."""
    minutes: float
    only: str | None = None
    """Regular expression of the names of the pieces to run; what checks correctness and the machine always runs."""
    device: str = "cuda"
    revision: str | None = None
    """Revision of the code, if the machine has no git history."""
    is_rehearsal: bool = False
    began: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds until no further piece may begin."""
        return 60 * self.minutes - SPARE - (time.monotonic() - self.began)

    def record(self, name: str | None = None) -> Path:
        """Path of a stage's record."""
        return self.records / f"{name or self.name}.json"

    def say(self, message: str) -> None:
        """Print a line with the seconds since the start, without buffering."""
        sys.stdout.write(f"{time.monotonic() - self.began:6.1f} s  {message}\n")
        sys.stdout.flush()


class Kept:
    """The finished pieces of a stage, stored in its record, after which it continues if it was killed."""

    def __init__(self, stage: Stage) -> None:
        """
        Raises:
            InputError: the record was begun with other sizes, on another device or with other code.
        """
        self.stage = stage
        self.about = finite(
            {"stage": stage.name, "is_rehearsal": stage.is_rehearsal, "device": device_name(stage.device),
             "revision": stage.revision or environment()["revision"]}
        )  # fmt: skip
        self.pieces: dict[str, Any] = {}
        path = stage.record()
        if path.is_file():
            before = Record.load(path)
            if before.config.get("about") != self.about:
                raise InputError(
                    f"--records {stage.records}: {path.name} was begun in other sizes, on another device or with "
                    "other code; move it away, or choose another folder"
                )
            self.pieces = before.values["pieces"]

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        """As ``antiphase.lab.speed.pieces.Piece``."""
        if name not in self.pieces:
            if self.stage.left <= 0:
                self.stage.say(f"no time left for {name}")
                return None
            if not self._is_wanted(name):
                return None
            started = time.monotonic()
            found = finite(work())
            self.add(name, found)
            self.stage.say(f"done: {name}, {time.monotonic() - started:.1f} s")
        return self.pieces[name]

    def _is_wanted(self, name: str) -> bool:
        only = self.stage.only
        return only is None or name.startswith(ALWAYS) or re.fullmatch(only, name) is not None

    def add(self, name: str, found: Any) -> None:
        """Store the result of a piece."""
        self.pieces[name] = finite(found)
        self.save(f"gpu-hour-{self.stage.name}", {"unfinished": True}, {})

    def save(self, kind: str, values: Mapping[str, Any], config: Mapping[str, Any]) -> Record:
        """Write the stage's record: ``values`` together with the pieces."""
        record = Record(
            kind=kind,
            values=finite({**values, "pieces": self.pieces}),
            config=finite({**config, "about": self.about}),
            seconds=time.monotonic() - self.stage.began,
        )
        record.environment["revision"] = self.stage.revision or record.environment["revision"]
        record.save(self.stage.records, self.stage.name)
        return record


def device_name(device: str) -> str:
    """Name of a device, by which records are distinguished."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "cpu"


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Complete lines of JSON; a partly written one is skipped."""
    content = path.read_bytes() if path.is_file() else b""
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].split(b"\n") if line]
