"""Shared code of the stages of ``gpu_hour.py``: sizes, time limit, and a record that is complete after every piece."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from antiphase.errors import InputError
from antiphase.records import Record, finite

SPARE = 20.0
"""Seconds that a stage keeps in reserve, for finishing its current work and for writing."""


ALWAYS = ("gate", "product rate")
"""Pieces that no option leaves out."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of everything; a rehearsal uses a hundredth."""

    settings: Sequence[str] = ()
    """KEY=VALUE overrides of the preset."""
    pilot_steps: int = 40
    continued_steps: int = 150
    fewest_pairs: int = 3
    """Smallest number of pairs; if they do not fit, each is trained with fewer tokens."""
    most_pairs: int = 5
    windows: int = 100
    """Windows for long-context, which measures the pair's loss and gain from context."""
    needles: Sequence[int] = (1, 2, 4, 8)
    queries: Sequence[int] = (1, 2)
    depths: Sequence[float] = (0.0, 0.5, 1.0)
    contexts: int = 50
    """Contexts per cell with needles, and for the allocation."""
    shots: Sequence[int] = (1, 4, 16, 32, 64)
    orders: int = 10
    asked: int = 100
    """Rows per labelled task."""
    bits: Sequence[int] = (8, 7, 6, 5, 4)
    sequences: int = 100
    """Sequences for outliers and quantization."""
    measured_at_once: int = 12


FULL = Sizes()
REHEARSAL = Sizes(
    settings=(
        "model.hidden_size=32", "model.num_hidden_layers=2", "model.intermediate_size=48",
        "model.num_attention_heads=4", "data.sequence_length=160", "data.needles=2", "data.queries=2",
        "data.vocabulary_size=512", "training.steps=12", "training.batch_size=20", "training.warmup_steps=3",
        "training.precision=float32", "training.attn_implementation=null", "training.log_every=1",
        "training.evaluate_every=6", "training.checkpoint_every=3", "training.device=cpu", "evaluation.samples=3",
        "evaluation.curve_samples=8", "evaluation.validation_sequences=8", "evaluation.depths=[0.0,1.0]",
    ),
    pilot_steps=4, continued_steps=6, fewest_pairs=1, most_pairs=1, windows=3, needles=(2,), depths=(0.5,),
    contexts=3, shots=(1, 2), orders=2, asked=4, bits=(8, 4), sequences=3, measured_at_once=1,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The options of a stage."""

    name: str
    records: Path
    """Folder of the stages' records, one small file each, which later stages read."""
    work: Path
    """Folder of all other files: models, logs."""
    data: Path
    """Folder that ``prepare`` has written."""
    minutes: float
    only: str | None = None
    """Regular expression of the names of the pieces to run; what checks correctness and the machine always runs."""
    device: str = "cuda"
    revision: str | None = None
    """Revision of the code, if the machine has no git history."""
    is_rehearsal: bool = False
    began: float = field(default_factory=time.monotonic)

    @property
    def sizes(self) -> Sizes:
        return REHEARSAL if self.is_rehearsal else FULL

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
            InputError: the record was begun with other sizes or on another device.
        """
        self.stage = stage
        self.about = finite({"stage": stage.name, "sizes": asdict(stage.sizes), "device": device_name(stage.device)})
        self.pieces: dict[str, Any] = {}
        path = stage.record()
        if path.is_file():
            before = Record.load(path)
            if before.config.get("about") != self.about:
                raise InputError(
                    f"--records {stage.records}: {path.name} was begun in other sizes or on another device; move it "
                    "away, or choose another folder"
                )
            self.pieces = before.values["pieces"]

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        """As ``antiphase.benchmarks.pieces.Piece``."""
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


class NoTime(Exception):  # noqa: N818 – not a failure: what is done is kept
    """The time of a stage is over."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise NoTime in the block after this many seconds."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise NoTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Complete lines of JSON; a partly written one is skipped."""
    content = path.read_bytes() if path.is_file() else b""
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].split(b"\n") if line]
