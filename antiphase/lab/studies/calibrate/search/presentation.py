"""How records of ``antiphase calibrate search`` are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from antiphase.base.records import Record
from antiphase.lab.pages.presentation import Presentation
from antiphase.lab.pages.tables import Column, Table
from antiphase.lab.studies.calibrate.presentation import (
    RANDOM_HEADS,
    controls_table,
    format_share,
    head_changes,
    heads_drawing,
    judged,
    left_out_note,
    measures_table,
    next_command,
    signed,
    signed_interval,
    spoken,
    standings,
)
from antiphase.lab.studies.calibrate.search import Search


def finding(record: Record) -> str:
    """What the kept heads do, and how much of it is shown."""
    found, score = Search.of(record), spoken(record.config.get("score"))
    tried, kept = len(found.heads_alone), sum(map(len, found.heads.values()))
    if not kept:
        return f"None of the {tried} heads that were tried raises the {score} alone, so the plan changes nothing."
    others = sum(found.samples.values()) - sum(map(len, found.search_samples.values())) - sum(found.left_out.values())
    random = [row.gain for row in found.controls if row.setting.startswith(RANDOM_HEADS)]
    gain = judged(found.held_out_gain, found.held_out_gain_interval, random)
    return (
        f"{kept} of {tried} heads raise the {score} alone on the samples that choose; chance lets up to half do so. "
        f"The plan changes these {kept}. On {others:,} other samples it changes the {score} by {gain}."
    )


def closing(record: Record, output: Path) -> str:
    """The plan, and what judges it on other data."""
    plan = output / "plan.json"
    further = next_command(record, output, "apply", "OTHER.yaml", plan=plan) if Search.of(record).heads else ""
    return f"plan:   {plan}\n{further}".strip()


def result(record: Record) -> Table | None:
    """What the search found, judged on samples that it has not seen."""
    found = Search.read(record)
    if found is None:
        return None
    kept = ", ".join(f"{layer}: {' '.join(map(str, heads))}" for layer, heads in found.heads.items()) or "none"
    score = spoken(record.config.get("score"))
    rows: list[list[Any]] = [
        [f"Held-out {score} before", format_share(found.held_out_before)],
        [f"Held-out {score} after", format_share(found.held_out_after)],
        ["Gain, 95 % interval", f"{signed(found.held_out_gain)} [{signed_interval(found.held_out_gain_interval)}]"],
        ["Heads kept (layer: heads)", kept],
        ["Evaluations", f"{found.evaluations:,} of {found.exhaustive_evaluations:,} ({found.method})"],
    ]
    note = left_out_note(found.left_out)
    if not record.config.get("controls", True):
        note = f"{note} Controls were not run: random heads may gain as much.".strip()
    return Table(title="Calibration found", columns=[Column("What"), Column("Value")], rows=rows, note=note)


@Search.from_record
def plain(found: Search) -> Table | None:
    """Each task without calibration."""
    return standings(found.tasks)


@Search.from_record
def measures(found: Search) -> Table | None:
    """Whether more than the labels' prior moved."""
    return measures_table(found.tasks, found.measures, found.measures_calibrated)


@Search.from_record
def controls(found: Search) -> Table | None:
    """What the gain must be compared with."""
    return controls_table(found.controls)


@Search.from_record
def heads_alone(found: Search) -> Figure | None:
    """Change of the score by layer and head."""
    changes = {}
    for name, row in found.heads_alone.items():
        layer, _, head = name.partition(".")
        changes[int(layer), int(head)] = row.change
    return head_changes(changes)


PRESENTATION = Presentation(
    introduction="Every head was calibrated alone on one part of the samples and kept if the score rose; the kept "
    "ones were then judged together on the other part. Chance alone lets many heads “improve”: read the held-out gain "
    "and its interval.",
    tables=lambda record: [plain(record), result(record), measures(record), controls(record)],
    figures=heads_drawing(heads_alone),
    finding=finding,
    closing=closing,
)
