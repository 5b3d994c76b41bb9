"""A verdict on each claim of the paper, by rule, from records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphase.outcomes import NOT_SEEN, LearnedThreshold, learned_words
from antiphase.studies.registration import UNREGISTERED, Registration
from antiphase.studies.reproduce.abilities import Ability, failing
from antiphase.studies.reproduce.claims import CLAIMS, Claim
from antiphase.studies.reproduce.readings import ARM, BASELINE, Floor, Found, Series
from antiphase.studies.verdicts import (
    CEILING,
    FLOOR_MARGIN,
    SEEDS_FOR_A_VERDICT,
    compare_metric,
    in_family,
    learned_verdict,
    verdict,
)


def judge_all(
    found: Found,
    why_missing: Mapping[str, str],
    registered: Registration | None,
    *,
    diverged: Sequence[int] = (),
    own_scale: bool = False,
) -> list[dict[str, Any]]:
    """A row for every claim, with p, and the verdict that would hold under Holm's correction over all that were tested.

    What was not written down before the run gets no verdict.
    """
    rows = [judge(claim, found, why_missing, diverged=diverged, own_scale=own_scale) for claim in CLAIMS]
    for row in rows:
        if row["verdict"] != "not testable" and (registered is None or row["claim"] not in registered.claims):
            row |= {"verdict": UNREGISTERED, "reason": "it was not written down before the run", "p": None}
    family = in_family([(row["verdict"], row.get("p")) for row in rows])
    return [row | corrected for row, corrected in zip(rows, family, strict=True)]


def judge(
    claim: Claim,
    found: Found,
    why_missing: Mapping[str, str],
    *,
    diverged: Sequence[int] = (),
    own_scale: bool = False,
) -> dict[str, Any]:
    """One row of the table of claims: both arms' means, their paired difference with its interval, and the verdict.

    Where the claim takes an ability, the numbers are those of the pairs that learned alike, if five or more are left.

    Args:
        diverged: seeds that were not measured, for a model's loss was no number; the others are no fair sample, unless
            the claim is of pairs that learned alike anyway.
        own_scale: whether the models are of the size and training that the claim was made of.
    """
    row: dict[str, Any] = {
        "claim": claim.name, "source": claim.source, "paper": claim.paper, "part": claim.part,
        "measured": claim.measured.format(cells="no cell"), "unit": claim.metric.unit, "digits": claim.metric.digits,
        "is_share": claim.metric.is_share, "lower_is_better": claim.metric.lower_is_better,
    }  # fmt: skip

    def untestable(reason: str, **numbers: Any) -> dict[str, Any]:
        return {**row, **numbers, "verdict": "not testable", "reason": reason}

    records = found.get(claim.part, ())
    if not records and diverged:
        return untestable(f"a model diverged in {_seeds(len(diverged))}")
    if not records:
        return untestable(why_missing.get(claim.part, "this part was not asked for"))
    whole = claim.read(records)
    guarded = claim.guard(found)
    if all(value is None for values in whole.values() for value in values):
        return untestable(guarded or "nothing was measured")
    total = len(whole[BASELINE])
    abilities = [] if guarded else claim.abilities(found)
    left = sorted(set(range(total)).intersection(*(ability.left() for ability in abilities)))
    few_left = bool(abilities) and len(left) < min(SEEDS_FOR_A_VERDICT, total)
    used = list(range(total)) if few_left else left
    if all(value is None for values in whole.values() for place, value in enumerate(values) if place in used):
        return untestable("nothing was measured of the pairs that learned alike")
    numbers, series = _numbers(claim, records, whole, used)
    row |= numbers | {"pairs": total, "measured": claim.measured.format(cells=claim.cells(records))}
    if guarded is not None:
        return untestable(guarded)
    if few_left:
        return untestable(_too_few(abilities, left, total))
    stated = [f"{len(left)} of {total} pairs learned alike"] if len(left) < total else []
    if diverged:
        told = f"a model diverged in {_seeds(len(diverged))}"
        if not abilities:
            return {**row, "verdict": "inconclusive", "reason": told}
        stated.append(told)
    if row["seeds"] < len(used):
        return {**row, "verdict": "inconclusive", "reason": "some seeds have no value"}
    return _judged(claim, row, series, used, stated, abilities, claim.floor(records), own_scale=own_scale)


def _judged(
    claim: Claim,
    row: dict[str, Any],
    series: Series,
    used: Sequence[int],
    stated: list[str],
    abilities: Sequence[Ability],
    floor: Floor | None,
    *,
    own_scale: bool,
) -> dict[str, Any]:
    """The row with its verdict, where there are numbers of every seed."""

    def untestable(reason: str, **numbers: Any) -> dict[str, Any]:
        return {**row, **numbers, "verdict": "not testable", "reason": reason}

    if floor is not None and not floor.guess + FLOOR_MARGIN < row["softmax"] < CEILING:
        return untestable("the softmax models are on the floor or the ceiling")
    if floor is not None and row["learned"] is not None:
        word, row["p"] = learned_verdict(series, ARM, BASELINE, LearnedThreshold.of(floor.guess), own_scale=own_scale)
        told = f"learned (above {100 * row['line']:.0f} %): {learned_words(row['learned'])}"
        return {**row, "verdict": word, "reason": ", ".join([_seeds(row["seeds"]), *stated, told])}
    word = verdict(
        row["differences"], lower_is_better=claim.metric.lower_is_better, interval=row["interval"],
        baseline_mean=row["softmax"], floor=row["floor"], own_scale=own_scale,
    )  # fmt: skip
    better = {"reproduced": ARM, "contradicted": BASELINE, NOT_SEEN: BASELINE}.get(word)
    for ability in abilities:
        if better is not None and (less := ability.less(better, used)) is not None:
            return untestable(less, p=None)
    reasons = [] if word != "inconclusive" else [_seeds(row["seeds"]), "the interval includes 0"]
    if row["seeds"] < SEEDS_FOR_A_VERDICT:
        row["p"] = None
        reasons = [_seeds(row["seeds"]), "five are needed"]
    reasons += stated
    if floor is not None:
        reasons += filter(None, [failing(series, floor.exceeded_by)])
    return {**row, "verdict": word, "reason": ", ".join(reasons)}


def _numbers(claim: Claim, records: Sequence[Any], whole: Series, used: Sequence[int]) -> tuple[dict[str, Any], Series]:
    """What the row says of the seeds that are used, and their values."""
    series: Series = {arm: [values[place] for place in used] for arm, values in whole.items()}
    samples = {arm: sample.of_seeds(used) for arm, sample in claim.samples(records).items()}
    floor = claim.floor(records)
    threshold = None if floor is None else LearnedThreshold.of(floor.guess)
    entry = compare_metric(claim.metric, series, BASELINE, samples=samples, threshold=threshold)
    assert entry is not None  # some value is known
    difference = entry["differences"][ARM]
    made = difference.get("interval_is")
    return {
        "softmax": entry["arms"][BASELINE]["mean"], "differential": entry["arms"][ARM]["mean"], "values": series,
        "difference": difference["mean"], "interval": difference["interval"], "interval_is": made,
        "differences": difference["values"], "seeds": difference["seeds"], "learned": entry["learned"],
        "line": entry["line"], "floor": None if floor is None else floor.guess,
        "p": None if made is None else made["p"],
    }, series  # fmt: skip


def _too_few(abilities: Sequence[Ability], left: Sequence[int], total: int) -> str:
    found = [reason for ability in abilities for reason in ability.reasons()]
    return f"{len(left)} of {total} pairs learned alike, five are needed ({'; '.join(found)})"


def _seeds(count: int) -> str:
    return f"{count} paired seed{'s' * (count != 1)}"
