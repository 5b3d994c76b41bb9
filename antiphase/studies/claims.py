"""The Differential Transformer paper's claims (2410.05258), each with its numbers, and a verdict from records by rule.

A claim compares the differential arm with the softmax arm over paired seeds; ``studies/verdicts.py`` has the rule.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NamedTuple

from antiphase.evals.statistics import mean_interval, wilson_interval
from antiphase.records import Record
from antiphase.studies.verdicts import (
    CEILING,
    FLOOR_MARGIN,
    SEEDS_FOR_A_VERDICT,
    Metric,
    compare_metric,
    verdict,
)

BASELINE, ARM = "softmax", "differential"
HIGHER_LOSS = 0.01, 0.1
"""Nats a token by which a model that has learned as much may be worse, on average over seeds and with any one."""
MOSTLY_COPIED = 0.9
"""Share of a summary's words in runs taken from the text, from which on it is a copy."""
LEAST_LOST = 1e-3
"""Nats a token that few bits must cost before it can be told who loses less."""
NO_BETTER = "not shown to beat a guess"
Found = Mapping[str, Sequence[Record]]
"""Records by part of the reproduction."""
Series = dict[str, list[float | None]]
"""Arm to one value for each seed."""


class Floor(NamedTuple):
    """What a share of right answers has to exceed."""

    guess: float
    """What a system without the ability scores."""
    answers: int
    """So many stand behind the share of one model."""

    def exceeded_by(self, share: float) -> bool:
        """By more than a hair, and by more than chance would explain (95 %, Wilson)."""
        shown = wilson_interval(round(share * self.answers), self.answers)[0] > self.guess
        return shown and share > self.guess + FLOOR_MARGIN


@dataclass(frozen=True)
class Claim:
    """One claim of the paper."""

    name: str
    part: str
    """Of the reproduction, whose records show it."""
    source: str
    """Section, table or figure."""
    paper: str
    """The paper's own numbers, softmax first, in the unit of ``metric``."""
    measured: str
    """What stands for it here, where that is not what the paper measured; ``{cells}`` is filled in from ``cells``."""
    metric: Metric
    read: Callable[[Sequence[Record]], Series]
    floor: Callable[[Sequence[Record]], Floor | None] = lambda records: None
    guard: Callable[[Found], str | None] = lambda found: None
    """Why records that exist cannot show the claim."""
    easier_unlearned: bool = False
    """Whether a model that has learned less has it better: who has it better must not have learned less."""
    ability: Callable[[Found], Series] = lambda found: {}
    """Share of right answers that a system without the ability would lose and win the claim by: who has it better must
    not be right less often."""
    cells: Callable[[Sequence[Record]], str] = lambda records: ""
    """Which of the measured cells count, in words."""


def judge(
    claim: Claim, found: Found, why_missing: Mapping[str, str], *, diverged: Sequence[int] = ()
) -> dict[str, Any]:
    """One row of the table of claims: both arms' means, their paired difference with its interval, and the verdict.

    ``diverged``: seeds that were not measured, for a model's loss was no number; the others are no fair sample.
    """
    row: dict[str, Any] = {
        "claim": claim.name, "source": claim.source, "paper": claim.paper, "part": claim.part,
        "measured": claim.measured.format(cells="no cell"), "unit": claim.metric.unit, "digits": claim.metric.digits,
        "is_share": claim.metric.is_share, "lower_is_better": claim.metric.lower_is_better,
    }  # fmt: skip
    records = found.get(claim.part, ())
    if not records and diverged:
        return {**row, "verdict": "not testable", "reason": f"a model diverged in {_seeds(len(diverged))}"}
    if not records:
        reason = why_missing.get(claim.part, "this part was not asked for")
        return {**row, "verdict": "not testable", "reason": reason}
    series = claim.read(records)
    entry = compare_metric(claim.metric, series, BASELINE)
    if entry is None:
        return {**row, "verdict": "not testable", "reason": claim.guard(found) or "nothing was measured"}
    difference = entry["differences"][ARM]
    floor = claim.floor(records)
    row |= {
        "measured": claim.measured.format(cells=claim.cells(records)),
        "softmax": entry["arms"][BASELINE]["mean"], "differential": entry["arms"][ARM]["mean"],
        "difference": difference["mean"], "interval": difference["interval"], "differences": difference["values"],
        "seeds": difference["seeds"],
        "floor": None if floor is None else floor.guess,
    }  # fmt: skip
    if (guarded := claim.guard(found)) is not None:
        return {**row, "verdict": "not testable", "reason": guarded}
    if diverged:
        return {**row, "verdict": "inconclusive", "reason": f"a model diverged in {_seeds(len(diverged))}"}
    if difference["seeds"] < len(series[BASELINE]):
        return {**row, "verdict": "inconclusive", "reason": "some seeds have no value"}
    if floor is not None and not floor.guess + FLOOR_MARGIN < row["softmax"] < CEILING:
        return {**row, "verdict": "not testable", "reason": "the softmax models are on the floor or the ceiling"}
    word = verdict(
        difference["values"], lower_is_better=claim.metric.lower_is_better,
        baseline_mean=row["softmax"], floor=row["floor"],
    )  # fmt: skip
    better = {"reproduced": ARM, "contradicted": BASELINE}.get(word)
    if claim.easier_unlearned and better is not None and (less := _learned_less(found, better)) is not None:
        reason = f"{less}, and what has learned less has this better"
        return {**row, "verdict": "not testable", "reason": reason}
    if better is not None and (less := _less_able(claim.ability(found), better)) is not None:
        return {**row, "verdict": "not testable", "reason": less}
    reasons = [] if word != "inconclusive" else [_seeds(difference["seeds"]), "the interval includes 0"]
    if difference["seeds"] < SEEDS_FOR_A_VERDICT:
        reasons = [_seeds(difference["seeds"]), "five are needed"]
    if floor is not None:
        reasons += filter(None, [_named(_failing(series, floor.exceeded_by), NO_BETTER)])
    return {**row, "verdict": word, "reason": ", ".join(reasons)}


def _seeds(count: int) -> str:
    return f"{count} paired seed{'s' * (count != 1)}"


def _less_able(ability: Series, arm: str) -> str | None:
    """Whether the arm that has something better is right less often, on average over seeds."""
    means = {name: statistics.fmean(value or 0.0 for value in values) for name, values in ability.items()}
    if not means or means[arm] >= max(means.values()) - FLOOR_MARGIN:
        return None
    shown = ", ".join(f"{name} {100 * mean:.0f} %" for name, mean in means.items())
    return f"the {arm} models are right less often ({shown})"


def _failing(series: Series, passes: Callable[[float], bool]) -> dict[str, str]:
    """Arms of which some seeds do not pass, with how many."""
    found = {}
    for arm, values in series.items():
        count = sum(value is None or not passes(value) for value in values)
        if count:
            found[arm] = f"{count} of {len(values)} seeds"
    return found


def _learned_less(found: Found, arm: str) -> str | None:
    """How an arm has, or may have, learned less than the other: by its held-out loss, and by retrieval in each seed."""
    if not (records := found.get("compare", ())):
        return None
    other = BASELINE if arm == ARM else ARM
    losses = _compared("held-out loss")(records)
    pairs = list(zip(losses[arm], losses[other], strict=True))
    if any(None in pair for pair in pairs):
        return "some seeds have no loss"
    higher = [one - another for one, another in pairs if one is not None and another is not None]
    if statistics.fmean(higher) > HIGHER_LOSS[0] or max(higher) > HIGHER_LOSS[1]:
        return f"the {arm} models have a higher loss"
    record, accuracies = records[0], _compared("first-query accuracy")(records)
    floor = Floor(record.values.get("guess_rate") or 0.0, record.config["run"]["evaluation"]["curve_samples"])
    behind = sum(
        floor.exceeded_by(another or 0.0) and not floor.exceeded_by(one or 0.0)
        for one, another in zip(accuracies[arm], accuracies[other], strict=True)
    )
    if behind:
        return f"the {arm} models do not retrieve in {behind} of {len(pairs)} seeds where the {other} models do"
    return None


def by_seed(records: Sequence[Record], value: Callable[[Record], float | None]) -> Series:
    """Of records of single models, which say their arm and seed."""
    seeds = sorted({record.values["seed"] for record in records})
    known = {(record.values["arm"], record.values["seed"]): value(record) for record in records}
    return {arm: [known.get((arm, seed)) for seed in seeds] for arm in (BASELINE, ARM)}


def _compared(name: str) -> Callable[[Sequence[Record]], Series]:
    """A metric of ``antiphase compare``; no values where it was not measured."""

    def read(records: Sequence[Record]) -> Series:
        entries = [entry for entry in records[0].values["comparison"] if entry["metric"] == name]
        return {arm: entries[0]["arms"][arm]["values"] if entries else [] for arm in (BASELINE, ARM)}

    return read


def _by_arm(records: Sequence[Record], value: Callable[[list[Mapping[str, Any]]], float | None], rows: str) -> Series:
    """Of records of one seed each with both arms in them: ``value`` of an arm's rows with the needle anywhere."""

    def of(record: Record, arm: str) -> float | None:
        return value([
            row for row in record.values[rows]
            if row["trained"] and row["depth"] is None and row["arm"].startswith(f"{arm}-seed")
        ])  # fmt: skip

    return {arm: [of(record, arm) for record in records] for arm in (BASELINE, ARM)}


def _allocated(spans: Sequence[str]) -> Callable[[Sequence[Record]], Series]:
    """Share of Σ|A| on some spans, mean over layers, seen from the end of the question."""

    def share(rows: list[Mapping[str, Any]]) -> float | None:
        whole = [row for row in rows if row["layer"] == "all" and row["map"] in ("softmax", "difference")]
        return sum(whole[0]["spans"][span]["share"] for span in spans) if whole else None

    return lambda records: _by_arm(records, share, "rows")


def _retrieves(found: Found) -> str | None:
    """Where an arm looks for an answer means little while it finds none: who looks at one token has no noise."""
    if not found.get("needles"):
        return "it needs the part needles, which says whether the models find the answers"
    floor = _pooled(_cells_of_allocation(found).values())
    if floor is None:
        return "the part needles has not asked with as many needles"
    return _named(_failing(_found_there(found), floor.exceeded_by), NO_BETTER)


def _cells_of_allocation(found: Found) -> dict[Cell, Floor]:
    """Cells of the needle grid with as many needles as where allocation was measured."""
    asked = {row["needles"] for record in found["allocation"] for row in record.values["rows"]}
    return {cell: floor for cell, floor in _cells(found["needles"]).items() if cell[0] in asked}


def _found_there(found: Found) -> Series:
    """How often the answer is found among as many needles."""
    return _right_in(found["needles"], _cells_of_allocation(found))


def _named(failed: Mapping[str, str], what: str) -> str | None:
    return f"{what}: " + ", ".join(f"{arm} in {count}" for arm, count in failed.items()) if failed else None


Cell = tuple[int, int, int]
"""Needles, questions and tokens of a prompt."""


def _cells(records: Sequence[Record]) -> dict[Cell, Floor]:
    """Cells of the needle grid with the needle anywhere; a record is one seed, both arms in it."""
    return {
        _cell(row): Floor(row["guess_rate"], row["samples"])
        for row in records[0].values["summary"]
        if row["trained"] and row["depth"] is None
    }


def _cell(row: Mapping[str, Any]) -> Cell:
    return row["needles"], row["queries"], row["length"]


def _right_in(records: Sequence[Record], cells: Iterable[Cell]) -> Series:
    """Share of right outputs, mean over some cells."""
    chosen = set(cells)

    def right(rows: list[Mapping[str, Any]]) -> float | None:
        found = [row["accuracy"] for row in rows if _cell(row) in chosen]
        return statistics.fmean(found) if found else None

    return _by_arm(records, right, "summary")


def _telling_cells(records: Sequence[Record]) -> dict[Cell, Floor]:
    """Cells where the softmax models are neither on the floor nor on the ceiling, over all seeds."""
    found = {}
    for cell, floor in _cells(records).items():
        known = [share for share in _right_in(records, [cell])[BASELINE] if share is not None]
        mean = statistics.fmean(known)
        if Floor(floor.guess, floor.answers * len(known)).exceeded_by(mean) and mean < CEILING:
            found[cell] = floor
    return found


def _pooled(floors: Iterable[Floor]) -> Floor | None:
    """Of the mean over cells."""
    listed = list(floors)
    if not listed:
        return None
    return Floor(statistics.fmean(floor.guess for floor in listed), sum(floor.answers for floor in listed))


def _counted(records: Sequence[Record]) -> str:
    """N of the cells that count, and of those that do not."""
    telling = _telling_cells(records)
    named = [
        ", ".join(str(cell[0]) for cell in _cells(records) if (cell in telling) == counts) for counts in (True, False)
    ]
    return f"N = {named[0] or 'none'}" + (f", not {named[1]}" if named[1] else "")


def _can_tell(found: Found) -> str | None:
    return None if _telling_cells(found["needles"]) else "the softmax models are on the floor or the ceiling"


def _reads_context(found: Found) -> str | None:
    """A lower loss at the end says nothing of context where the text before it does not lower it."""
    gains = by_seed(found["long-context"], lambda record: (record.values["tail"].get("gain_interval") or [0.0])[0])
    return _named(_failing(gains, lambda gained: gained > 0), "nothing gained from the text before")


def _largest(what: str) -> Callable[[Record], float]:
    return lambda record: next(
        row["top"]["1"] for row in record.values["rows"] if (row["what"], row["layer"]) == (what, "all")
    )


def _lost_at(bits: int) -> Callable[[Record], float | None]:
    """What few bits cost in loss."""

    def read(record: Record) -> float | None:
        losses = {row["bits"]: row["loss"] for row in record.values["rows"]}
        whole, few = losses.get(None), losses.get(bits)
        return None if whole is None or few is None else few - whole

    return read


def _costs_something(found: Found) -> str | None:
    """Where few bits cost the softmax models nothing, nothing can cost less."""
    lost = [value for value in by_seed(found["quantization"], _lost_at(4))[BASELINE] if value is not None]
    interval = mean_interval(lost)
    if (lost and statistics.fmean(lost) < LEAST_LOST) or (interval is not None and interval[0] <= 0):
        return "4 bits cost the softmax models nothing"
    return None


def _most_shots(record: Record) -> float:
    """Accuracy at the largest number of examples, mean over tasks."""
    return statistics.fmean(task["rows"][-1]["accuracy"] for task in record.values["tasks"].values())


def _margin(record: Record) -> float | None:
    return _of_orders(record, "margin")


def _mean_of_orders(record: Record) -> float | None:
    return _of_orders(record, "mean_accuracy")


def _of_orders(record: Record, name: str) -> float | None:
    """Mean over tasks; None where no orders were drawn."""
    found = [task["orders"]["random"][name] for task in record.values["tasks"].values() if task["orders"]]
    return statistics.fmean(found) if found else None


def _majority(records: Sequence[Record]) -> Floor | None:
    """What always naming one label scores."""
    tasks = records[0].values["tasks"].values()
    return _pooled(Floor(task["majority_rate"], task["samples"]) for task in tasks)


def _learns_from_examples(found: Found) -> str | None:
    """A constant predictor answers alike in every order, so its spread of 0 is no robustness."""
    records = found["many-shot"]
    floor, series = _majority(records), by_seed(records, _mean_of_orders)
    if floor is not None and (failed := _failing(series, floor.exceeded_by)):
        return _named(failed, NO_BETTER)
    if statistics.fmean(value for value in series[BASELINE] if value is not None) >= CEILING:
        return "the softmax models are on the ceiling"
    margins = [value for value in by_seed(records, _margin)[BASELINE] if value is not None]
    if statistics.fmean(margins) <= FLOOR_MARGIN:
        return "the order changes nothing for the softmax models"
    return None


def _downstream(records: Sequence[Record]) -> Series:
    """Mean over tasks and numbers of examples; a record is one seed, both arms in it."""

    def of(record: Record, arm: str) -> float | None:
        rows = [row for row in _scored(record) if PurePath(row["model"]).name.startswith(f"{arm}-seed")]
        return statistics.fmean(row["metrics"][row["metric"]]["value"] for row in rows) if rows else None

    return {arm: [of(record, arm) for record in records] for arm in (BASELINE, ARM)}


def _scored(record: Record) -> list[Mapping[str, Any]]:
    return [row for row in record.values["rows"] if row["metric"] is not None]


def _without_reading(records: Sequence[Record]) -> Floor | None:
    """What the better of a uniform choice and the commonest place scores, mean over the same tasks."""
    rows = [row for row in _scored(records[0]) if PurePath(row["model"]).name.startswith(f"{BASELINE}-seed")]
    return _pooled(Floor(max(row["guess_rate"] or 0.0, row["constant_rate"] or 0.0), row["samples"]) for row in rows)


def _is_judged(found: Found) -> str | None:
    """Verdicts count where the judge tells true texts from false ones, gives them, and the models do not just copy."""
    records = found["hallucination"]
    rows = [row for task in records[0].values["tasks"].values() for row in task["systems"]]
    yes = {}
    for role in ("gold", "wrong"):
        own = [row for row in rows if row["system"] == role]
        right = sum(row["right"] for row in own)
        yes[role] = wilson_interval(right, right + sum(row["wrong"] - row["empty"] for row in own))
    if yes["gold"][0] <= yes["wrong"][1]:
        return "the judge does not tell references from references made wrong"
    tasks = [(record.values["arm"], task) for record in records for task in record.values["tasks"].values()]
    models = [(arm, task["kind"], row) for arm, task in tasks for row in task["systems"] if row["system"] == "model"]
    unjudged, samples = (sum(row[name] for _, _, row in models) for name in ("unjudged", "samples"))
    if unjudged > FLOOR_MARGIN * samples:
        return f"the judge gave no verdict on {unjudged} of {samples} outputs"
    for arm in (BASELINE, ARM):
        copied = [row["copied"] for own, kind, row in models if (own, kind) == (arm, "summarization")]
        if copied and statistics.fmean(copied) > MOSTLY_COPIED:
            return f"the {arm} models copy what they are to summarise"
    return None


def _faithful(record: Record) -> float:
    """Share of outputs that the judge found true of the text, mean over data sets."""
    tasks = record.values["tasks"].values()
    return statistics.fmean(
        next(row["accuracy"] for row in task["systems"] if row["system"] == "model") for task in tasks
    )


def _untrue(records: Sequence[Record]) -> Floor | None:
    """Nothing need be true; the answers of one model."""
    rows = [row for task in records[0].values["tasks"].values() for row in task["systems"] if row["system"] == "model"]
    return _pooled(Floor(0.0, row["samples"]) for row in rows)


CLAIMS = (
    Claim(
        "Downstream tasks: higher accuracy", "harness", "Tables 1 and 8",
        "mean of seven tasks, zero-shot 55.4 → 56.2, five-shot 56.4 → 58.0 (350B tokens)",
        "mean of the tasks given and their numbers of examples",
        Metric("accuracy", "points", lower_is_better=False, digits=1, is_share=True), _downstream,
        _without_reading,
    ),
    Claim(
        "Language modelling: lower held-out loss at equal size and tokens", "compare", "Figure 3, Table 6",
        "3.087 → 3.062 at 1.4B; 6.8B as good as 11B, 160B tokens as 251B", "held-out text",
        Metric("held-out loss", "nats a token", lower_is_better=True, digits=4), _compared("held-out loss"),
    ),
    Claim(
        "Long context: lower loss at the end of the window", "long-context", "Figure 4", "lower at every length to 64K",
        "the last eighth of the length of training; no model was extended",
        Metric("loss of the last eighth", "nats a token", lower_is_better=True, digits=4),
        lambda records: by_seed(records, lambda record: record.values["tail"]["loss"]), guard=_reads_context,
    ),
    Claim(
        "Key information retrieval: more of several needles found", "needles", "Table 2",
        "R = 2, N = 2: 85 → 92; N = 4: 62 → 84; N = 6: 55 → 85 (4K tokens)",
        "R = 1, needles anywhere; mean over the N where the softmax models are off floor and ceiling: {cells}",
        Metric("right outputs", "points", lower_is_better=False, digits=1, is_share=True),
        lambda records: _right_in(records, _telling_cells(records)),
        lambda records: _pooled(_telling_cells(records).values()), _can_tell, cells=_counted,
    ),
    Claim(
        "Attention allocation: more on the answer", "allocation", "Table 3", "3 to 9 → 27 to 40 by depth",
        "share of Σ|A|, the needle anywhere",
        Metric("share on the answer", "points", lower_is_better=False, digits=1, is_share=True),
        _allocated(["answer"]), guard=_retrieves, ability=_found_there,
    ),
    Claim(
        "Attention allocation: less on noise", "allocation", "Table 3", "49 to 54 → 1 to 2 by depth",
        "share of Σ|A| on other needles and filler",
        Metric("share on noise", "points", lower_is_better=True, digits=1, is_share=True),
        _allocated(["other_needles", "filler"]), guard=_retrieves, ability=_found_there,
    ),
    Claim(
        "In-context learning: higher many-shot accuracy", "many-shot", "Figure 6", "5.2 to 21.6 points higher",
        "words with labels of no meaning, as in training, at the most examples of the scale",
        Metric("accuracy", "points", lower_is_better=False, digits=1, is_share=True),
        lambda records: by_seed(records, _most_shots), _majority,
    ),
    Claim(
        "In-context learning: less spread over orders of the examples", "many-shot", "Figure 7",
        "best minus worst of random orders on TREC: 19.0 → 4.0",
        "the same words; best minus worst order of each pairing of words and labels",
        Metric("best minus worst order", "points", lower_is_better=True, digits=1, is_share=True),
        lambda records: by_seed(records, _margin), guard=_learns_from_examples,
        ability=lambda found: by_seed(found["many-shot"], _mean_of_orders),
    ),
    Claim(
        "Contextual hallucination: more outputs that are true of the text", "hallucination", "Table 4",
        "XSum 44 → 53, CNN/DM 32 → 41, MultiNews 42 → 61", "the sets given, by the judge given",
        Metric("true outputs", "points", lower_is_better=False, digits=1, is_share=True),
        lambda records: by_seed(records, _faithful), _untrue, _is_judged,
    ),
    Claim(
        "Outliers: smaller largest attention logit", "outliers", "Table 5", "318.0 → 38.8", "over all layers",
        Metric("largest attention logit", "", lower_is_better=True, digits=2),
        lambda records: by_seed(records, _largest("attention logits")), easier_unlearned=True,
    ),
    Claim(
        "Outliers: smaller largest hidden state", "outliers", "Table 5", "3608.6 → 1688.2", "over all layers",
        Metric("largest hidden state", "", lower_is_better=True, digits=2),
        lambda records: by_seed(records, _largest("hidden states")), easier_unlearned=True,
    ),
    Claim(
        "Quantization: less lost with 4-bit attention logits", "quantization", "Figure 8",
        "differential with 4 bits as good as softmax with 6, in accuracy on HellaSwag", "in loss on held-out text",
        Metric("loss added by 4 bits", "nats a token", lower_is_better=True, digits=4),
        lambda records: by_seed(records, _lost_at(4)), guard=_costs_something, easier_unlearned=True,
    ),
)  # fmt: skip
UNJUDGED = (
    "parts taken away (Table 6), throughput (Table 7), the laws of Figure 3, and orders that alternate (Figure 7)"
)
"""What the reproduction measures and gives no verdict on."""
