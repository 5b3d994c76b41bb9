"""Records of ``antiphase compare`` and ``train`` → what is shown of them, older comparisons by today's rules.

Accuracies of models that either learned or did not are shown as counts, in older records too: by the rule of
``outcomes.py``, from the values by seed that every record holds.
"""

from __future__ import annotations

from dataclasses import replace

from antiphase.evaluations.retrieval_shown import Retrieval
from antiphase.outcomes import (
    NOT_SEEN,
    ComparedMetric,
    Counts,
    LearnedThreshold,
    following_sentence,
    follows,
    split_sentence,
)
from antiphase.records import Record
from antiphase.studies.compare import ComparedRun, Comparison, Parameters
from antiphase.studies.runs import run_of

ACCURACY, LOSS = "first-query accuracy", "held-out loss"


def shown(record: Record) -> Comparison:
    """The comparison; a single run is one of one arm.

    Raises:
        InputError: a record of another kind, or with invalid contents.
    """
    if record.kind != "train":
        found = Comparison.of(record)
        return found if found.holm is not None else _renewed(found)
    trained = run_of(record)
    arm = record.config.get("model", {}).get("attention_type") or "model"
    run = ComparedRun(arm=arm, **vars(trained))
    return Comparison(arms=[arm], runs=[run], parameters={arm: Parameters(total=trained.parameters or None)})


def retrieval_of(record: Record) -> Retrieval:
    """Its needles and its allocation of attention."""
    found = shown(record)
    return Retrieval(found.arms, found.needles.summary, found.needles.cells, found.allocation)


def threshold_of(found: Comparison) -> LearnedThreshold | None:
    """The accuracy above which a model has learned; None where the record has no guess rate."""
    return None if found.guess_rate is None else LearnedThreshold.of(found.guess_rate, found.threshold)


def _renewed(found: Comparison) -> Comparison:
    """An older comparison without the means and intervals that describe no model, and in today's words.

    None of its models was of a paper's scale, so that nothing is contradicted.
    """
    threshold, accuracies = threshold_of(found), found.values(ACCURACY)
    comparison, further = (
        [_entry(entry, threshold, accuracies) if threshold is not None else entry for entry in entries]
        for entries in (found.comparison, found.further_comparison)
    )
    words = found.verdict.replace("contradicted", NOT_SEEN)
    return replace(found, comparison=comparison, further_comparison=further, verdict=words)


def _entry(
    entry: ComparedMetric, threshold: LearnedThreshold, accuracies: dict[str, list[float | None]]
) -> ComparedMetric:
    differences, told = dict(entry.differences), []
    learned: Counts = {}
    baseline = [arm for arm in entry.arms if arm not in differences][:1]
    for arm, difference in differences.items():
        pair = [*baseline, arm]
        values = {name: entry.arms[name].values for name in pair}
        counts = None
        if entry.metric == ACCURACY:
            counts = threshold.counts(values)
        elif (
            entry.metric == LOSS
            and accuracies
            and any(follows(values[name], accuracies[name], threshold) for name in pair)
        ):
            counts = threshold.counts({name: accuracies[name] for name in pair})
        if counts is not None:
            learned |= counts
            told.append(
                split_sentence(ACCURACY, counts, threshold)
                if entry.metric == ACCURACY
                else following_sentence(entry.metric, pair)
            )
        if counts is not None or any(None in series for series in values.values()):
            differences[arm] = replace(difference, mean=None, interval=None)
    return replace(
        entry, differences=differences, learned=learned or None, line=threshold.at if learned else None,
        sentence=" ".join(told) or entry.sentence,
    )  # fmt: skip


def sentences(record: Record) -> list[str]:
    """The sentences of a comparison."""
    found = shown(record)
    return [entry.sentence for entry in (*found.comparison, *found.further_comparison) if entry.sentence]
