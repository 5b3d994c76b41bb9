"""Records of ``antiphase compare`` → what was compared, by today's rules, and the sentences.

Accuracies of models that either learned or did not are shown as counts, in older records too: by the rule of
``outcomes.py``, from the values by seed that every record holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphase.outcomes import NOT_SEEN, LearnedThreshold, following_sentence, follows, split_sentence
from antiphase.records import Record

ACCURACY, LOSS = "first-query accuracy", "held-out loss"


def threshold_of(record: Record) -> LearnedThreshold | None:
    """The accuracy above which a model of the record has learned; None where the record has no guess rate."""
    guess = record.values.get("guess_rate")
    return None if guess is None else LearnedThreshold.of(guess, record.values.get("threshold"))


def entries_of(record: Record) -> list[dict[str, Any]]:
    """What was compared; entries of older records as today's rules have them."""
    values = record.values if record.kind == "compare" else {}
    found = [*(values.get("comparison") or []), *(values.get("further_comparison") or [])]
    threshold = threshold_of(record)
    accuracies: dict[str, list[float | None]] = {}
    for entry in found:
        if entry["metric"] == ACCURACY:
            accuracies |= {arm: list(summary.get("values") or []) for arm, summary in entry["arms"].items()}
    return [entry if "learned" in entry else _renewed(entry, threshold, accuracies) for entry in found]


def _renewed(
    entry: Mapping[str, Any], threshold: LearnedThreshold | None, accuracies: Mapping[str, Sequence[float | None]]
) -> dict[str, Any]:
    """An older entry without the means and intervals that describe no model."""
    differences = {arm: dict(found) for arm, found in (entry.get("differences") or {}).items()}
    baseline = next((arm for arm in entry["arms"] if arm not in differences), None)
    learned: dict[str, list[int]] = {}
    told = []
    for arm, difference in differences.items():
        pair = [name for name in (baseline, arm) if name is not None]
        values = {name: entry["arms"][name].get("values") or [] for name in pair}
        counts = None
        if threshold is not None and entry["metric"] == ACCURACY:
            counts = threshold.counts(values)
        elif threshold is not None and entry["metric"] == LOSS and _follows(values, accuracies, threshold):
            counts = threshold.counts({name: accuracies[name] for name in pair})
        censored = any(value is None for series in values.values() for value in series)
        if counts is not None or censored:
            difference |= {"mean": None, "interval": None}
        if counts is not None and threshold is not None:
            learned |= counts
            is_accuracy = entry["metric"] == ACCURACY
            told.append(
                split_sentence(ACCURACY, counts, threshold)
                if is_accuracy
                else following_sentence(entry["metric"], pair)
            )
    sentence = " ".join(told) or entry.get("sentence")
    at = threshold.at if learned and threshold is not None else None
    return {**entry, "differences": differences, "learned": learned or None, "line": at, "sentence": sentence}


def _follows(
    values: Mapping[str, Sequence[float | None]],
    accuracies: Mapping[str, Sequence[float | None]],
    threshold: LearnedThreshold,
) -> bool:
    return values.keys() <= accuracies.keys() and any(
        follows(series, accuracies[arm], threshold) for arm, series in values.items()
    )


def sentences(record: Record) -> list[str]:
    """The sentences of a comparison."""
    return [entry["sentence"] for entry in entries_of(record) if entry.get("sentence")]


def verdict_of(record: Record) -> str:
    """The verdicts in words; in older records, none of whose models was of a paper's scale, in today's."""
    words = str(record.values.get("verdict") or "")
    return words if "holm" in record.values else words.replace("contradicted", NOT_SEEN)
