"""Options that several commands share, and what their words mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphase.errors import InputError

if TYPE_CHECKING:
    from antiphase.config import Preset


PresetOption = Annotated[str, typer.Option("--preset", help="Name of a shipped preset, or a YAML file.")]
OutputOption = Annotated[Path, typer.Option("--output", help="Folder for the results; must be new, or use --resume.")]
NewOutputOption = Annotated[Path, typer.Option("--output", help="Folder for the results; must be new or empty.")]
OptionalOutputOption = Annotated[
    Path | None, typer.Option("--output", help="Folder for a record; must be new or empty.", show_default=False)
]
QuickOption = Annotated[bool, typer.Option("--quick", help="Fewer sizes and seeds: a look, no result.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of what is drawn at random.")]
DataOption = Annotated[
    list[str] | None,
    typer.Option("--data", help="File, folder or Hub dataset with text. Repeatable.", show_default=False),
]
ValidationOption = Annotated[
    list[str] | None,
    typer.Option("--validation", help="Held-out text, as for --data. Repeatable.", show_default=False),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="KEY=VALUE over the preset, e.g. training.steps=200. Repeatable.", show_default=False),
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with the run that --output holds.")]
SeedsOption = Annotated[str | None, typer.Option("--seeds", help="Comma-separated, e.g. 0,1,2.", show_default=False)]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:0.")]
TaskCodeOption = Annotated[
    bool, typer.Option("--trust-task-code", help="Run the Python that tasks bring: functions, metrics, open templates.")
]
CausalModel = Annotated[
    str, typer.Argument(metavar="MODEL", help="Local folder or Hub name of a causal language model.")
]
TaskOption = Annotated[
    list[str] | None,
    typer.Option("--task", help="YAML file of a task; 'template: trec' and 'data: FILE' make one. Repeatable."),
]
TaskSamples = Annotated[int, typer.Option("--samples", help="Samples of each task.")]
ShotsOption = Annotated[
    int | None, typer.Option("--shots", help="Examples before each prompt; none: the task's own number.")
]
AlphaOption = Annotated[float, typer.Option("--alpha", help="A sink receives more than alpha / N.")]
BetaOption = Annotated[float, typer.Option("--beta", help="What is left of a weight on a sink.")]
ModeOption = Annotated[str, typer.Option("--mode", help="Which queries choose the sinks: paper, prompt or running.")]
LARGEST_RANGE = 10_000
"""Numbers that ``2-9`` may stand for."""


def chosen_preset(
    name: str,
    settings: list[str] | None,
    data: list[str] | None,
    validation: list[str] | None,
    seeds: str | None,
    device: str | None,
) -> Preset:
    """The preset with all flags that change it."""
    from antiphase.config import load_preset

    return load_preset(name, overrides(settings, seeds, device), data=data or [], validation=validation or [])


def overrides(settings: list[str] | None, seeds: str | None, device: str | None) -> list[str]:
    """All flags that change a preset, as KEY=VALUE."""
    overrides = list(settings or [])
    if seeds is not None:
        overrides.append(f"compare.seeds={numbers('--seeds', seeds, int)}")
    if device is not None and device != "auto":
        overrides.append(f"training.device={device}")
    return overrides


def numbers(flag: str, text: str, kind: Callable[[str], Any]) -> list[Any]:
    """``1,2,4`` as [1, 2, 4]."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} must be comma-separated numbers, got {text!r}") from None


def ranges(flag: str, text: str) -> list[int]:
    """``2-4,7`` as [2, 3, 4, 7]."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            ends = int(first), int(last if dash else first)
        except ValueError:
            raise InputError(f"{flag} must be numbers and ranges such as 2-9 or 2,4,6, got {text!r}") from None
        if ends[1] - ends[0] >= LARGEST_RANGE:
            raise InputError(f"{flag} names more than {LARGEST_RANGE:,} numbers: {part!r}")
        found += range(ends[0], ends[1] + 1)
    if not found:
        raise InputError(f"{flag} names nothing: {text!r}")
    return found
