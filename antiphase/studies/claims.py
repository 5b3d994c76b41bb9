"""The Differential Transformer paper's claims (2410.05258), each with its numbers, and a verdict from records by rule.

A claim compares the differential arm with the softmax arm over paired seeds; ``studies/verdicts.py`` has the rule.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from antiphase.evals.statistics import wilson_interval
from antiphase.records import Record
from antiphase.studies.verdicts import CEILING, FLOOR_MARGIN, Metric, compare_metric, verdict

BASELINE, ARM = "softmax", "differential"
MOSTLY_COPIED = 0.9
"""Share of a summary's words in runs taken from the text, from which on it is a copy."""
Found = Mapping[str, Sequence[Record]]
"""Records by part of the reproduction."""
Series = dict[str, list[float | None]]
"""Arm to one value for each seed."""


@dataclass(frozen=True)
class Claim:
    """One claim of the paper."""

    name: str
    part: str
    """Of the reproduction, whose records show it."""
    source: str
    """Section, table or figure."""
    paper: str
    """The paper's own numbers, softmax first."""
    metric: Metric
    read: Callable[[Sequence[Record]], Series]
    floor: Callable[[Sequence[Record]], float | None] = lambda records: None
    guard: Callable[[Sequence[Record]], str | None] = lambda records: None
    """Why records that exist cannot show the claim."""
    easier_unlearned: bool = False
    """Whether a model that has learned less has it better: it counts only where the arm's loss is not higher."""


def judge(claim: Claim, found: Found, why_missing: Mapping[str, str]) -> dict[str, Any]:
    """One row of the table of claims: both arms' means, their paired difference with its interval, and the verdict."""
    row: dict[str, Any] = {
        "claim": claim.name, "source": claim.source, "paper": claim.paper, "part": claim.part,
        "unit": claim.metric.unit, "digits": claim.metric.digits, "is_share": claim.metric.is_share,
        "lower_is_better": claim.metric.lower_is_better,
    }  # fmt: skip
    records = found.get(claim.part, ())
    if not records:
        reason = why_missing.get(claim.part, "this part was not asked for")
        return {**row, "verdict": "not testable", "reason": reason}
    if (guarded := claim.guard(records)) is not None:
        return {**row, "verdict": "not testable", "reason": guarded}
    series = claim.read(records)
    entry = compare_metric(claim.metric, series, BASELINE)
    if entry is None:
        return {**row, "verdict": "not testable", "reason": "nothing was measured"}
    difference = entry["differences"][ARM]
    floor = claim.floor(records)
    row |= {
        "softmax": entry["arms"][BASELINE]["mean"], "differential": entry["arms"][ARM]["mean"],
        "difference": difference["mean"], "interval": difference["interval"], "seeds": difference["seeds"],
        "floor": floor,
    }  # fmt: skip
    if difference["seeds"] < len(series[BASELINE]):
        return {**row, "verdict": "inconclusive", "reason": "some seeds have no value"}
    word = verdict(
        difference["values"], lower_is_better=claim.metric.lower_is_better,
        baseline_mean=row["softmax"], floor=floor,
    )  # fmt: skip
    if claim.easier_unlearned and word == "reproduced" and _has_learned_less(found):
        reason = "the differential models have a higher loss, and what has learned less has this better"
        return {**row, "verdict": "not testable", "reason": reason}
    reasons = {
        "not testable": "the softmax models are on the floor or the ceiling",
        "inconclusive": f"{difference['seeds']} paired seeds"
        + (", five are needed" if difference["seeds"] < 5 else ", the interval includes 0"),
    }
    return {**row, "verdict": word, "reason": reasons.get(word, "")}


def _has_learned_less(found: Found) -> bool:
    """Whether the differential arm's held-out loss is higher, by the rule of verdicts."""
    if not (records := found.get("compare", ())):
        return False
    series = _compared("held-out loss")(records)
    pairs = [(a, b) for a, b in zip(series[ARM], series[BASELINE], strict=True) if a is not None and b is not None]
    return verdict([a - b for a, b in pairs], lower_is_better=True, baseline_mean=0.0) == "contradicted"


def by_seed(records: Sequence[Record], value: Callable[[Record], float | None]) -> Series:
    """Of records of single models, which say their arm and seed."""
    seeds = sorted({record.values["seed"] for record in records})
    known = {(record.values["arm"], record.values["seed"]): value(record) for record in records}
    return {arm: [known.get((arm, seed)) for seed in seeds] for arm in (BASELINE, ARM)}


def _compared(name: str) -> Callable[[Sequence[Record]], Series]:
    """A metric of ``antiphase compare``."""

    def read(records: Sequence[Record]) -> Series:
        entry = next(entry for entry in records[0].values["comparison"] if entry["metric"] == name)
        return {arm: entry["arms"][arm]["values"] for arm in (BASELINE, ARM)}

    return read


def _allocated(spans: Sequence[str]) -> Callable[[Sequence[Record]], Series]:
    """Share of Σ|A| on some spans, mean over layers, seen from the end of the first question."""

    def read(records: Sequence[Record]) -> Series:
        values = records[0].values
        seeds = [run["seed"] for run in values["runs"] if run["arm"] == BASELINE]
        known = {
            (row["arm"], row["seed"]): sum(row["spans"][span]["share"] for span in spans)
            for row in values["allocation"]
            if row["trained"] and row["layer"] == "all" and row["map"] in ("softmax", "difference")
        }
        return {arm: [known.get((arm, seed)) for seed in seeds] for arm in (BASELINE, ARM)}

    return read


def _retrieves(records: Sequence[Record]) -> str | None:
    """Where an arm looks for an answer means little while it finds none: who looks at one token has no noise."""
    values = records[0].values
    entry = next(entry for entry in values["comparison"] if entry["metric"] == "first-query accuracy")
    for arm in (BASELINE, ARM):
        if entry["arms"][arm]["mean"] <= values["guess_rate"] + FLOOR_MARGIN:
            return f"the {arm} models retrieve no more than a guess would"
    return None


def _retrieved(records: Sequence[Record]) -> Series:
    """Share of right outputs, mean over the cells with the needle anywhere; a record is one seed, both arms in it."""

    def of(record: Record, arm: str) -> float | None:
        found = [row["accuracy"] for row in _anywhere(record, arm)]
        return statistics.fmean(found) if found else None

    return {arm: [of(record, arm) for record in records] for arm in (BASELINE, ARM)}


def _anywhere(record: Record, arm: str) -> list[Mapping[str, Any]]:
    return [
        row
        for row in record.values["summary"]
        if row["trained"] and row["depth"] is None and row["arm"].startswith(f"{arm}-seed")
    ]


def _guessed(records: Sequence[Record]) -> float:
    """What guessing scores in the same cells."""
    return statistics.fmean(row["guess_rate"] for row in _anywhere(records[0], BASELINE))


def _largest(what: str) -> Callable[[Record], float]:
    return lambda record: next(
        row["top"]["1"] for row in record.values["rows"] if (row["what"], row["layer"]) == (what, "all")
    )


def _lost_at(bits: int) -> Callable[[Record], float | None]:
    """What few bits cost in loss."""

    def read(record: Record) -> float | None:
        losses = {row["bits"]: row["loss"] for row in record.values["rows"]}
        return None if bits not in losses else losses[bits] - losses[None]

    return read


def _most_shots(record: Record) -> float:
    """Accuracy at the largest number of examples, mean over tasks."""
    return statistics.fmean(task["rows"][-1]["accuracy"] for task in record.values["tasks"].values())


def _margin(record: Record) -> float:
    return statistics.fmean(task["orders"]["random"]["margin"] for task in record.values["tasks"].values())


def _majority(records: Sequence[Record]) -> float:
    return statistics.fmean(task["majority_rate"] for task in records[0].values["tasks"].values())


def _learns_from_examples(records: Sequence[Record]) -> str | None:
    """A constant predictor answers alike in every order, so its spread of 0 is no robustness."""
    floor = _majority(records)
    series = by_seed(records, _mean_of_orders)
    for arm in (BASELINE, ARM):
        mean = statistics.fmean(value for value in series[arm] if value is not None)
        if mean <= floor + FLOOR_MARGIN:
            return f"the {arm} models are no better than always naming one label"
        if arm == BASELINE and mean >= CEILING:
            return "the softmax models are on the ceiling"
    return None


def _mean_of_orders(record: Record) -> float:
    return statistics.fmean(task["orders"]["random"]["mean_accuracy"] for task in record.values["tasks"].values())


def _downstream(records: Sequence[Record]) -> Series:
    """Mean over tasks and numbers of examples; a record is one seed, both arms in it."""

    def of(record: Record, arm: str) -> float | None:
        rows = [row for row in _scored(record) if PurePath(row["model"]).name.startswith(f"{arm}-seed")]
        return statistics.fmean(row["metrics"][row["metric"]]["value"] for row in rows) if rows else None

    return {arm: [of(record, arm) for record in records] for arm in (BASELINE, ARM)}


def _scored(record: Record) -> list[Mapping[str, Any]]:
    return [row for row in record.values["rows"] if row["metric"] is not None]


def _without_reading(records: Sequence[Record]) -> float | None:
    """What the better of a uniform choice and the commonest place scores, mean over the same tasks."""
    rates = [max(row["guess_rate"] or 0.0, row["constant_rate"] or 0.0) for row in _scored(records[0])]
    return statistics.fmean(rates) if rates else None


def _is_judged(records: Sequence[Record]) -> str | None:
    """Verdicts count where the judge tells true texts from false ones, gives them, and the models do not just copy."""
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


CLAIMS = (
    Claim(
        "Downstream tasks: higher accuracy", "harness", "Tables 1 and 8",
        "mean of seven tasks, zero-shot 55.4 → 56.2, five-shot 56.4 → 58.0 (350B tokens)",
        Metric("accuracy", "points", lower_is_better=False, digits=1, is_share=True), _downstream,
        _without_reading,
    ),
    Claim(
        "Language modelling: lower held-out loss at equal size and tokens", "compare", "Figure 3, Table 6",
        "3.087 → 3.062 at 1.4B; 6.8B as good as 11B, 160B tokens as 251B",
        Metric("held-out loss", "nats a token", lower_is_better=True, digits=4), _compared("held-out loss"),
    ),
    Claim(
        "Long context: lower loss at the end of the window", "long-context", "Figure 4", "lower at every length to 64K",
        Metric("loss of the last eighth", "nats a token", lower_is_better=True, digits=4),
        lambda records: by_seed(records, lambda record: record.values["tail"]["loss"]),
    ),
    Claim(
        "Key information retrieval: more of several needles found", "needles", "Table 2",
        "R = 2 (here 1), N = 2: 0.85 → 0.92; N = 4: 0.62 → 0.84; N = 6: 0.55 → 0.85",
        Metric("right outputs", "points", lower_is_better=False, digits=1, is_share=True), _retrieved,
        _guessed,
    ),
    Claim(
        "Attention allocation: more on the answer", "compare", "Table 3", "0.03 to 0.09 → 0.27 to 0.40 by depth",
        Metric("share on the answer", "points", lower_is_better=False, digits=1, is_share=True),
        _allocated(["answer"]), guard=_retrieves,
    ),
    Claim(
        "Attention allocation: less on noise", "compare", "Table 3", "0.49 to 0.54 → 0.01 to 0.02 by depth",
        Metric("share on noise", "points", lower_is_better=True, digits=1, is_share=True),
        _allocated(["other_needles", "filler"]), guard=_retrieves,
    ),
    Claim(
        "In-context learning: higher many-shot accuracy", "many-shot", "Figure 6", "5.2 to 21.6 points higher",
        Metric("accuracy", "points", lower_is_better=False, digits=1, is_share=True),
        lambda records: by_seed(records, _most_shots), _majority,
    ),
    Claim(
        "In-context learning: less spread over orders of the examples", "many-shot", "Figure 7",
        "best minus worst of random orders on TREC: 19.0 → 4.0 points",
        Metric("best minus worst order", "points", lower_is_better=True, digits=1, is_share=True),
        lambda records: by_seed(records, _margin), guard=_learns_from_examples,
    ),
    Claim(
        "Contextual hallucination: more outputs that are true of the text", "hallucination", "Table 4",
        "XSum 0.44 → 0.53, CNN/DM 0.32 → 0.41, MultiNews 0.42 → 0.61",
        Metric("true outputs", "points", lower_is_better=False, digits=1, is_share=True),
        lambda records: by_seed(records, _faithful), lambda records: 0.0, _is_judged,
    ),
    Claim(
        "Outliers: smaller largest attention logit", "outliers", "Table 5", "318.0 → 38.8",
        Metric("largest attention logit", "", lower_is_better=True, digits=2),
        lambda records: by_seed(records, _largest("attention logits")), easier_unlearned=True,
    ),
    Claim(
        "Outliers: smaller largest hidden state", "outliers", "Table 5", "3608.6 → 1688.2",
        Metric("largest hidden state", "", lower_is_better=True, digits=2),
        lambda records: by_seed(records, _largest("hidden states")), easier_unlearned=True,
    ),
    Claim(
        "Quantization: less lost with 4-bit attention logits", "quantization", "Figure 8",
        "differential with 4 bits as good as softmax with 6",
        Metric("loss added by 4 bits", "nats a token", lower_is_better=True, digits=4),
        lambda records: by_seed(records, _lost_at(4)), easier_unlearned=True,
    ),
)  # fmt: skip
