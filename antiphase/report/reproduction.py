"""Records of ``antiphase reproduce`` → the table of the paper's claims, what equal loss takes, and budgets."""

from __future__ import annotations

from typing import Any

from antiphase.records import Record
from antiphase.report.tables import Column, Table

COLOURS = {"reproduced": "#1a7f37", "contradicted": "#b3261e", "inconclusive": "#6e7781", "not testable": "#afb8c1"}


def claims(record: Record) -> Table | None:
    """Each claim with both arms' means, the paired difference and the verdict."""
    listed = _claims(record)
    rows = [
        [row["claim"], f"{spoken(row, row.get('softmax'))} → {spoken(row, row.get('differential'))}", _difference(row),
         row["verdict"]]
        if row.get("difference") is not None
        else [row["claim"], "–", "–", row["verdict"]]
        for row in listed
    ]  # fmt: skip
    columns = [Column("Claim"), Column("Softmax → differential"), Column("Difference, 95 %"), Column("Verdict")]
    seeds = f"{len(record.seeds)} paired seed{'s' * (len(record.seeds) != 1)}"
    given = sum(row["verdict"] != "not testable" for row in listed)
    note = (
        f"Means over {seeds}. A verdict takes five, and an interval that excludes 0. "
        f"{given} claims were tested: of twenty without any difference, chance would give about one a verdict."
    )
    return Table(title="The paper's claims", columns=columns, rows=rows, note=note) if rows else None


def published(record: Record) -> Table | None:
    """What each claim rests on here and in the paper, with its numbers, and why there is no verdict."""
    rows = [
        [row["claim"], row.get("measured") or "–", f"{row['source']}: {row['paper']}", row.get("reason") or "–"]
        for row in _claims(record)
    ]
    columns = [Column("Claim"), Column("Measured here"), Column("In the paper, softmax → differential"),
               Column("Why no verdict, or who failed")]  # fmt: skip
    note = "Ye et al., 2410.05258: models of 0.8B to 13B parameters, most of them of 3B. "
    if models := record.values.get("models"):
        counts = [f"{models['parameters'][arm]:,}" for arm in ("softmax", "differential")]
        note += (
            f"Here: {' and '.join(counts)} parameters, contexts of {models['sequence_length']:,} tokens, "
            f"{models['tokens'] / 1e6:,.1f}M tokens of training. "
        )
    if unjudged := record.values.get("unjudged"):
        note += f"Measured, but no claim is judged by it: {unjudged}."
    return Table(title="Beside the paper", columns=columns, rows=rows, note=note) if rows else None


def _claims(record: Record) -> list[dict[str, Any]]:
    return record.values.get("claims") or [] if record.kind == "reproduce" else []


def equal_loss(record: Record) -> Table | None:
    """Parameters and tokens for the softmax arm's loss."""
    listed = record.values.get("equal_loss") if record.kind == "reproduce" else None
    if not listed:
        return None
    rows = [[row["axis"], row["loss"], row["baseline"], row["needed"], row["ratio"]] for row in listed]
    columns = [Column("Over"), Column("Loss", "loss"), Column("Softmax has", "integer"),
               Column("Differential needs", "integer"), Column("Ratio", "number")]  # fmt: skip
    note = (
        "By laws through four sizes of one seed, so without an interval; where the ratio exceeds 1, more than was "
        "trained, so extrapolated. The paper: 6.8B for 11B, 160B tokens for 251B."
    )
    return Table(title="Needed for equal loss", columns=columns, rows=rows, note=note)


def budgets(record: Record) -> Table | None:
    """What runs take."""
    if record.kind != "budget":
        return None
    rows = [
        [row["arm"], row["parameters"], row["parameters"] - row["embedding_parameters"], f"{row['tokens']:.2e}",
         f"{row['flops']:.2e}", f"{row['state_bytes'] / 2**30:,.0f} GiB",
         f"{row['activation_bytes'] / 2**30:,.1f} GiB", f"{row['days']:,.1f}"]
        for row in record.values["rows"]
    ]  # fmt: skip
    columns = [Column("Arm"), Column("Parameters", "integer"), Column("Without embeddings", "integer"),
               Column("Tokens"), Column("Operations"), Column("Weights and optimizer"),
               Column("Activations of a micro-batch"), Column("Days")]  # fmt: skip
    fleet = record.config["fleet"]
    note = (
        f"On {fleet['devices']} devices of {fleet['flops']:.1e} operations a second each. Weights, gradients "
        "and Adam in fp32, shared out over the fleet where they are sharded; activations are a lower bound."
    )
    return Table(title="What it takes", columns=columns, rows=rows, note=note)


def spoken(row: dict[str, Any], value: float | None, *, signed: bool = False) -> str:
    """A value of a claim with its digits; shares in points."""
    if value is None:
        return "–"
    text = f"{value * (100 if row['is_share'] else 1):+,.{row['digits']}f}"
    if not any(digit in text for digit in "123456789"):
        return text[1:]  # neither +0.0 nor -0.0
    return text if signed else text.removeprefix("+")


def _difference(row: dict[str, Any]) -> str:
    if row.get("difference") is None:
        return "–"
    shown = spoken(row, row["difference"], signed=True)
    if row.get("interval") is None:
        return f"{shown} {row['unit']}".strip()
    low, high = (spoken(row, value, signed=True) for value in row["interval"])
    return f"{shown} [{low} to {high}] {row['unit']}".strip()
