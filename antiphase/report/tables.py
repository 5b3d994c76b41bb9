"""Records → plain tables, the same for the HTML page and the terminal.

The functions ``*_of`` read the parts of a record that several kinds share; a part that a record lacks is
empty, and a table without rows is None.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphase.records import Record

Row = Mapping[str, Any]

OF_TRAINING = (
    "asked_together", "needle_share", "label_share", "repeat_share", "long_share", "vocabulary_size", "cache",
)  # fmt: skip
"""Settings of data that no measurement uses."""
OF_SYMBOLS = ("keys", "numbers", "fillers")
"""Settings of the synthetic language."""
SPAN_ORDER = ("answer", "other_needles", "filler", "question", "instruction", "first_token")


@dataclass(frozen=True)
class Column:
    """Name and number style; every style but ``text`` is set flush right."""

    name: str
    style: str = "text"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Title, columns and raw values. A cell that is text already is printed as it stands."""

    title: str
    columns: Sequence[Column]
    rows: list[list[Any]]
    note: str = ""
    is_matrix: bool = False
    """Columns are values of one thing, such as labels: one that says the same in every row stays in its place."""

    def text(self) -> list[list[str]]:
        """The cells as people read them."""
        return [
            [format_value(value, column.style) for value, column in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]


def interval_text(interval: list[float] | None) -> str:
    """``2.31 to 2.54``."""
    return "–" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"


def percents_text(interval: Sequence[float] | None) -> str | None:
    """``75.8 to 100.0 %``."""
    return None if interval is None else f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f} %"


def format_value(value: Any, style: str = "number") -> str:
    """``0.8125`` as percent is ``81.2 %``; null is a dash; text stays."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) or style == "text":
        return str(value)
    if style == "percent":
        return f"{100 * value:.1f} %"
    if style == "loss":
        return f"{value:.3f}"
    if style == "signed":
        return f"{value:+.3f}"
    if isinstance(value, int) or style == "integer":
        return f"{round(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def threshold_text(record: Record) -> str:
    """The accuracy whose first passing counts, such as ``50 %``."""
    threshold = record.values.get("threshold")
    return "the threshold" if threshold is None else f"{100 * threshold:g} %"


def runs_of(record: Record) -> list[dict[str, Any]]:
    """Training runs, each with its ``arm`` and ``seed``; a ``train`` record is one run."""
    if record.kind == "train":
        name = record.values.get("arm") or record.config.get("model", {}).get("attention_type") or "model"
        return [{"seed": record.seeds[0] if record.seeds else None, **record.values, "arm": name}]
    return list(record.values.get("runs") or []) if record.kind in ("compare", "look") else []


def needles_of(record: Record, part: str) -> list[dict[str, Any]]:
    """``summary`` or ``cells`` of the needle grid; a single model is the arm ``model``, trained."""
    holder = record.values.get("needles") if record.kind == "compare" else None
    if record.kind == "evaluate-needles":
        holder = record.values
    return [{"arm": "model", "trained": True, **row} for row in (holder or {}).get(part) or []]


def allocation_of(record: Record) -> list[dict[str, Any]]:
    """Where attention went, the answer anywhere: one row for each arm, seed, layer and map."""
    return [row for row in _allocation_rows(record) if row["depth"] is None]


def _allocation_rows(record: Record) -> list[dict[str, Any]]:
    """The same with the answer at every depth."""
    name = {"compare": "allocation", "evaluate-allocation": "rows"}.get(record.kind)
    defaults = {"arm": "model", "seed": None, "trained": True, "layer": "all", "depth": None}
    return [{**defaults, **row} for row in (record.values.get(name) or [] if name else [])]


def perplexity_of(record: Record) -> list[dict[str, Any]]:
    """Rows of held-out perplexity."""
    name = {"compare": "perplexity", "evaluate-perplexity": "rows"}.get(record.kind)
    return list(record.values.get(name) or []) if name else []


def arms_of(record: Record) -> list[str]:
    """Arms in the order of display; this order also fixes their colours."""
    listed = record.values.get("arms") if record.kind == "compare" else None
    found = [row["arm"] for row in [*runs_of(record), *needles_of(record, "summary"), *allocation_of(record)]]
    return list(dict.fromkeys([*(listed or []), *found]))


def spans_of(rows: Iterable[Row]) -> list[str]:
    """Names of the spans: the answer and the noise first, unknown ones last."""
    found = dict.fromkeys(span for row in rows for span in row.get("spans") or {})
    known = [span for span in SPAN_ORDER if span in found]
    return known + [span for span in found if span not in SPAN_ORDER]


def present(values: Iterable[float | None]) -> list[float]:
    """The values that are not null."""
    return [value for value in values if value is not None]


GridPoint = tuple[int, int, int]
"""Needles, queries and tokens of a cell in the grid of retrieval."""


def grid_point(row: Row) -> GridPoint:
    """Where in the grid a row stands; 0 queries where a record does not say."""
    return row["needles"], row.get("queries", 0), row["length"]


def grid_points(rows: Iterable[Row]) -> list[GridPoint]:
    """The points that the grid holds."""
    return sorted({grid_point(row) for row in rows})


def point_words(point: GridPoint) -> str:
    """``8 needles, 12 questions, 256 tokens``."""
    needles, queries, length = point
    counted = [(needles, "needle"), *([(queries, "question")] if queries else []), (length, "token")]
    return ", ".join(f"{count} {noun}{'s' * (count != 1)}" for count, noun in counted)


def needle_summary(record: Record) -> Table | None:
    """Accuracy with its interval for each arm and place in the grid."""
    rows = []
    for row in needles_of(record, "summary"):
        low, high = row.get("interval") or (None, None)
        place = [*(row.get(key) for key in ("needles", "queries", "length")), depth_text(row.get("depth"))]
        numbers = [row.get("accuracy"), low, high, row.get("interval_is"), row.get("guess_rate"), row.get("samples")]
        rows.append([row["arm"], state(row), *place, *numbers])
    columns = columns_of(
        *("Arm", "Model", "Needles|integer", "Questions|integer", "Tokens|integer", "Depth"),
        *(
            "First-query accuracy|percent",
            "From|percent",
            "To|percent",
            "Interval",
            "Guess rate|percent",
            "Samples|integer",
        ),
    )
    note = (
        "Median over seeds with their range, or for one model its Wilson 95 % interval; samples are of one model. "
        "Compare only 'anywhere' with the guess rate: at depth 0 or 1, naming the first or last number is always right."
    )
    return _table("Needle accuracy by depth", columns, rows, note)


def needle_cells(record: Record) -> Table | None:
    """The same for each seed, with the accuracy of every place in the row of questions."""
    rows = []
    for cell in needles_of(record, "cells"):
        samples, correct = cell.get("samples"), cell.get("correct")
        accuracy = correct / samples if samples and correct is not None else None
        places = ", ".join(format_value(value, "percent") for value in cell.get("by_place") or []) or None
        setting = [cell.get(key) for key in ("needles", "queries", "length")]
        counts = [depth_text(cell.get("depth")), correct, samples, accuracy, places]
        rows.append([cell["arm"], cell.get("seed"), state(cell), *setting, *counts])
    columns = columns_of(
        *("Arm", "Seed|integer", "Model", "Needles|integer", "Questions|integer", "Tokens|integer", "Depth"),
        *("Right|integer", "Samples|integer", "Accuracy|percent", "Accuracy by place of the question"),
    )
    return _table("Needle accuracy by seed", columns, rows)


def perplexity(record: Record) -> Table | None:
    """Held-out perplexity, with whatever columns the evaluation wrote."""
    rows = perplexity_of(record)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    words = {key for key in keys if any(isinstance(row.get(key), (str, list, dict)) for row in rows)}
    styles = {"loss": "loss"} | dict.fromkeys(words, "text")
    columns = [Column(readable(key).capitalize(), styles.get(key, "number")) for key in keys]
    return _table("Perplexity", columns, [[row.get(key) for key in keys] for row in rows])


def allocation(record: Record, *, by_layer: bool = False) -> Table | None:
    """Share of Σ|A|, signed sum and contribution of each span: mean over layers and seeds, or each layer and seed."""
    chosen = [row for row in allocation_of(record) if by_layer or row["layer"] == "all"]
    spans = spans_of(chosen)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in chosen:
        seed = row["seed"] if by_layer else None
        groups.setdefault((row["arm"], state(row), row["layer"], row.get("map"), seed), []).append(row)
    rows = []
    measures = {
        "share": ("share", "percent"), "signed": ("signed", "signed"), "contribution": ("contribution", "percent"),
    }  # fmt: skip
    for (arm, model, layer, name, seed), members in groups.items():
        for measure, (title, style) in measures.items():
            means = [span_mean(members, span, measure) for span in spans]
            if measure == "contribution" and not present(means):  # of a map whose weights multiply no values
                continue
            cells = [format_value(mean, style) for mean in means]
            ratios = present((row.get("answer_to_noise") or {}).get(measure) for row in members)
            ratio = format_value(statistics.fmean(ratios)) if ratios else None
            place = [layer, name, seed] if by_layer else [name, len({row["seed"] for row in members})]
            rows.append([arm, model, *place, title, *cells, ratio])
    columns = columns_of("Arm", "Model", *(("Layer", "Map", "Seed") if by_layer else ("Map", "Seeds")), "Measure")
    columns += [Column(readable(span).capitalize(), "number") for span in spans]
    columns.append(Column("Answer ÷ noise", "number"))
    title = "Attention by layer, map and seed" if by_layer else "Attention by span, mean over layers and seeds"
    note = (
        "Seen from the last prompt position; share is of Σ|A|, signed is the sum of the weights, contribution the part "
        "of the layer's output along the whole of it. Noise is the other needles and filler."
    )
    return _table(title, columns, rows, note)


def knockouts(record: Record) -> Table | None:
    """The answer's log-probability without the answer, and without as much filler: in all layers, and in each alone."""
    rows = [row for row in _allocation_rows(record) if row["depth"] is None or row["layer"] == "all"]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["depth"] is not None):
        if row.get("knockout"):
            key = (row["arm"], state(row), depth_text(row["depth"]), row["layer"])
            groups.setdefault(key, []).append(row["knockout"])
    if not groups:
        return None
    cells = [
        [*key, len(members), *(_change([member[what] for member in members]) for what in ("answer", "filler"))]
        for key, members in groups.items()
    ]
    columns = columns_of(
        *("Model", "", "Depth", "Layer", "Seeds|integer", "Without the answer, nats", "Without filler, nats")
    )
    note = (
        "How the log-probability of the right answer changes when its needle, or as many random tokens of filler, are "
        "hidden from the tokens that predict it: in all layers at once, or in one. In brackets: 95 % over sequences of "
        "one seed, the range of several."
    )
    return Table(title="The answer knocked out", columns=columns, rows=cells, note=note)


def _change(found: Sequence[dict[str, Any] | None]) -> str | None:
    """Mean over seeds; None where one of them lacks the figure."""
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    changes = [one["change"] for one in known]
    bounds = (min(changes), max(changes)) if len(changes) > 1 else known[0]["interval"]
    text = f"{statistics.fmean(changes):+.3f}"
    return text if bounds is None else f"{text} [{bounds[0]:+.3f} to {bounds[1]:+.3f}]"


def span_mean(rows: Iterable[Row], span: str, measure: str) -> float | None:
    """Mean over rows of a span's ``share``, ``signed`` sum, ``contribution`` or change by ``knockout``."""
    if measure == "knockout":
        values = present(((row.get("knockout") or {}).get(span) or {}).get("change") for row in rows)
    else:
        values = present(((row.get("spans") or {}).get(span) or {}).get(measure) for row in rows)
    return statistics.fmean(values) if values else None


def scalars(record: Record) -> Table | None:
    """The single numbers and words of any record, by dotted name."""
    rows = [[name, value] for name, value in flatten(record.values) if not isinstance(value, (list, dict))]
    return _table("Values", columns_of("Name", "Value|number"), rows)


def lists(record: Record) -> list[Table | None]:
    """Every list of rows of any record as a table of its own, nested values left out."""
    tables = []
    for name, rows in flatten(record.values):
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            continue
        nested = {key for row in rows for key, value in row.items() if isinstance(value, (list, dict))}
        keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in nested]
        columns = [Column(readable(key).capitalize(), "number") for key in keys]
        tables.append(_table(readable(name).capitalize(), columns, [[row.get(key) for key in keys] for row in rows]))
    return tables


def provenance(record: Record) -> Table:
    """What is needed to make the record again."""
    seeds = ", ".join(map(str, record.seeds)) or None
    rows: list[list[Any]] = [["Command", record.command], ["Created (UTC)", record.created], ["Seeds", seeds]]
    rows.append(["Wall-clock seconds", format_value(record.seconds)])
    rows += [["Weights", sentence] for sentence in record.origins()]
    return Table(title="How this record was made", columns=columns_of("What", "Value"), rows=rows)


def settings(record: Record) -> Table | None:
    """The resolved settings, by dotted name; those of a measurement without data settings that only training uses."""
    data = record.config.get("data")
    hidden: set[str] = set()
    if record.kind.startswith("evaluate-") and isinstance(data, Mapping):
        hidden = {*OF_TRAINING, *(() if "needles" in record.config else ("needles", "queries"))}
        hidden |= set(OF_SYMBOLS) if data.get("source") == "text" else set()
    rows = [list(item) for item in flatten(record.config) if item[0] not in {f"data.{name}" for name in hidden}]
    return _table("Settings", columns_of("Setting", "Value"), rows)


def environment(record: Record) -> Table | None:
    """Versions and hardware."""
    rows = [list(item) for item in flatten(record.environment)]
    return _table("Environment", columns_of("What", "Value"), rows)


def state(row: Row) -> str:
    """``trained`` or ``untrained``."""
    return "trained" if row.get("trained", True) else "untrained"


def depth_text(depth: float | None) -> str:
    """Depth of the asked needle; null is a random one for each sequence."""
    return "anywhere" if depth is None else f"{depth:g}"


def readable(name: str) -> str:
    """``first_token`` as people write it."""
    return name.replace("_", " ")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """``(dotted name, value)`` of every leaf; a list is a leaf."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def columns_of(*names: str) -> list[Column]:
    """Columns from ``name`` (text) or ``name|style``."""
    return [Column(name, style or "text") for name, _, style in (text.partition("|") for text in names)]


def _table(title: str, columns: Sequence[Column], rows: list[list[Any]], note: str = "") -> Table | None:
    return Table(title=title, columns=columns, rows=rows, note=note) if rows else None
