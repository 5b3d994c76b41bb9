"""Records of ``antiphase scaling`` → tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from antiphase.records import Record
from antiphase.report.tables import Column, Table


def losses(record: Record) -> Table | None:
    """Median held-out loss of each arm at each size and budget."""
    runs = record.values.get("runs") if record.kind == "scaling" else None
    if not runs:
        return None
    arms = record.values["arms"]
    points = sorted({(run["width"], run["layers"], run["steps"]) for run in runs})
    rows = []
    for point in points:
        here = [run for run in runs if (run["width"], run["layers"], run["steps"]) == point]
        by_arm = [[run["loss"] for run in here if run["arm"] == arm] for arm in arms]
        parameters = statistics.median(run["parameters"] for run in here)
        rows.append([*point, parameters, here[0]["tokens"], *map(_median, by_arm)])
    columns = [Column("Width", "integer"), Column("Layers", "integer"), Column("Steps", "integer"),
               Column("Parameters", "integer"), Column("Tokens", "integer"),
               *(Column(arm, "loss") for arm in arms)]  # fmt: skip
    note = f"Held-out loss in nats per token, median over seeds ({len(record.seeds)})."
    for ladder in record.values.get("ladders") or []:
        if why := ladder.get("why_no_law") or ladder.get("why_no_equal_loss"):
            note += f" Not told what equal loss takes over {ladder['axis']}: {why}."
    return Table(title="Loss by size and by tokens", columns=columns, rows=rows, note=note)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def laws(record: Record) -> Table | None:
    """The fitted laws, floor + scale · x^(-exponent)."""
    rows = []
    for ladder in record.values.get("ladders") or [] if record.kind == "scaling" else []:
        for arm, law in ladder["laws"].items():
            ends = [(law.get("intervals") or {}).get(name) for name in ("floor", "exponent")]
            shown = [None if end is None else f"{end[0]:.3f} to {end[1]:.3f}" for end in ends]
            rows.append([ladder["axis"], arm, f"{law['floor']:.3f}", shown[0], f"{law['exponent']:.3f}", shown[1]])
    if not rows:
        return None
    columns = [Column("Over"), Column("Arm"), Column("Floor"), Column("95 %"), Column("Exponent"), Column("95 %")]
    note = "Loss = floor + scale · x^(-exponent), through all seeds; 95 % over the laws of single seeds."
    for ladder in record.values["ladders"]:
        if why := ladder.get("why_no_equal_loss"):
            note += f" Over {ladder['axis']} they say little: {why}."
    return Table(title="Laws of the loss", columns=columns, rows=rows, note=note)


def equal_loss(record: Record) -> Table | None:
    """What each arm needs for the loss of the first one's largest run."""
    ladders = record.values.get("ladders") if record.kind == "scaling" else None
    rows = []
    for ladder in ladders or []:
        for arm, found in ladder["equal_loss"].items():
            interval = found["interval"]
            shown = None if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"
            rows.append([ladder["axis"], arm, found["loss"], found["baseline"], found["needed"], found["ratio"], shown])
    if not rows:
        return None
    columns = [Column("Over"), Column("Arm"), Column("Loss", "loss"), Column("Baseline has", "integer"),
               Column("Arm needs", "integer"), Column("Ratio", "number"), Column("95 % over seeds")]  # fmt: skip
    note = (
        "By the fitted laws; where the ratio exceeds 1, more than was trained, so extrapolated. "
        "The paper: 6.8B parameters do for 11B, 160B tokens for 251B (2410.05258, figure 3)."
    )
    return Table(title="Needed for equal loss", columns=columns, rows=rows, note=note)
