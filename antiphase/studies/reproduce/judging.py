"""A verdict on each claim of the paper, by rule, from records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from antiphase.outcomes import NOT_SEEN, LearnedThreshold, learned_words
from antiphase.studies.registered_claims import UNREGISTERED, Registration
from antiphase.studies.reproduce import Judgement
from antiphase.studies.reproduce.abilities import NO_ROOM, Ability, failing
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

UNTESTABLE = "not testable"


def judge_all(
    found: Found,
    why_missing: Mapping[str, str],
    registered: Registration | None,
    *,
    diverged: Sequence[int] = (),
    own_scale: bool = False,
) -> list[Judgement]:
    """All claims, with p, and the verdict that would hold under Holm's correction over all that were tested.

    What was not written down before the run gets no verdict.
    """
    judged = [judge(claim, found, why_missing, diverged=diverged, own_scale=own_scale) for claim in CLAIMS]
    for place, one in enumerate(judged):
        if one.verdict != UNTESTABLE and (registered is None or one.claim not in registered.claims):
            judged[place] = replace(one, verdict=UNREGISTERED, reason="it was not written down before the run", p=None)
        elif one.verdict == UNTESTABLE:
            judged[place] = replace(one, p=None)
    family = in_family([(one.verdict, one.p) for one in judged])
    return [replace(one, **vars(corrected)) for one, corrected in zip(judged, family, strict=True)]


def judge(
    claim: Claim,
    found: Found,
    why_missing: Mapping[str, str],
    *,
    diverged: Sequence[int] = (),
    own_scale: bool = False,
) -> Judgement:
    """Both arms' means, their paired difference with its interval, and the verdict.

    Where the claim takes an ability, the numbers are those of the pairs that learned alike, if five or more are left.

    Args:
        diverged: seeds that were not measured, because a model's loss was not finite; the others are not a fair
            sample, unless the claim concerns only pairs that learned alike.
        own_scale: whether the models are of the size and training that the claim was made of.
    """
    metric = claim.metric
    row = Judgement(
        claim=claim.name, source=claim.source, paper=claim.paper, part=claim.part,
        measured=claim.measured.format(cells="no cell"), unit=metric.unit, digits=metric.digits,
        is_share=metric.is_share, lower_is_better=metric.lower_is_better, verdict=UNTESTABLE,
    )  # fmt: skip
    if not found.has(claim.part):
        missing = why_missing.get(claim.part, "this part was not asked for")
        return replace(row, reason=f"a model diverged in {_seeds(len(diverged))}" if diverged else missing)
    whole = claim.read(found)
    guarded = claim.guard(found)
    if all(value is None for values in whole.values() for value in values):
        return replace(row, reason=guarded or "nothing was measured")
    total = len(whole[BASELINE])
    abilities = [] if guarded else claim.abilities(found)
    left = sorted(set(range(total)).intersection(*(ability.left() for ability in abilities)))
    few_left = bool(abilities) and len(left) < min(SEEDS_FOR_A_VERDICT, total)
    used = list(range(total)) if few_left else left
    series: Series = {arm: [values[place] for place in used] for arm, values in whole.items()}
    if all(value is None for values in series.values() for value in values):
        return replace(row, reason="nothing was measured of the pairs that learned alike")
    floor = claim.floor(found)
    row = _with_numbers(row, claim, found, series, used, floor)
    row = replace(row, pairs=total, measured=claim.measured.format(cells=claim.cells(found)))
    if guarded is not None:
        return replace(row, reason=guarded)
    if few_left:
        return replace(row, reason=_too_few(abilities, left, total))
    stated = [f"{len(left)} of {total} pairs learned alike"] if len(left) < total else []
    if diverged:
        told = f"a model diverged in {_seeds(len(diverged))}"
        if not abilities:
            return replace(row, verdict="inconclusive", reason=told, p=None)
        stated.append(told)
    if (row.seeds or 0) < len(used):
        return replace(row, verdict="inconclusive", reason="some seeds have no value", p=None)
    return _judged(row, series, used, stated, abilities, floor, own_scale=own_scale)


def _judged(
    row: Judgement,
    series: Series,
    used: Sequence[int],
    stated: list[str],
    abilities: Sequence[Ability],
    floor: Floor | None,
    *,
    own_scale: bool,
) -> Judgement:
    """The row with its verdict, where there are numbers of every seed."""
    mean, seeds = ((row.softmax or 0.0) + (row.differential or 0.0)) / 2, len(used)
    if floor is not None and not floor.guess + FLOOR_MARGIN < mean < CEILING:
        return replace(row, reason=NO_ROOM)
    if floor is not None and row.learned is not None:
        threshold = LearnedThreshold.of(floor.guess)
        word, p = learned_verdict(series, ARM, BASELINE, threshold, own_scale=own_scale)
        told = f"learned (above {100 * threshold.at:.0f} %): {learned_words(row.learned)}"
        return replace(row, verdict=word, p=p, reason=", ".join([_seeds(seeds), *stated, told]))
    word = verdict(
        row.differences or [], lower_is_better=row.lower_is_better, interval=row.interval, mean=mean,
        floor=row.floor, own_scale=own_scale,
    )  # fmt: skip
    better = {"reproduced": ARM, "contradicted": BASELINE, NOT_SEEN: BASELINE}.get(word)
    for ability in abilities:
        if better is not None and (less := ability.less(better, used)) is not None:
            return replace(row, reason=less, p=None)
    reasons = [] if word != "inconclusive" else [_seeds(seeds), "the interval includes 0"]
    if seeds < SEEDS_FOR_A_VERDICT:
        row = replace(row, p=None)
        reasons = [_seeds(seeds), "five are needed"]
    reasons += stated
    if floor is not None:
        reasons += filter(None, [failing(series, floor.exceeded_by)])
    return replace(row, verdict=word, reason=", ".join(reasons))


def _with_numbers(
    row: Judgement, claim: Claim, found: Found, series: Series, used: Sequence[int], floor: Floor | None
) -> Judgement:
    """The row with what is said of the seeds that are used."""
    samples = {arm: sample.of_seeds(used) for arm, sample in claim.samples(found).items()}
    threshold = None if floor is None else LearnedThreshold.of(floor.guess)
    entry = compare_metric(claim.metric, series, BASELINE, samples=samples, threshold=threshold)
    assert entry is not None  # some value is known
    difference = entry.differences[ARM]
    made = difference.interval_is
    return replace(
        row, softmax=entry.arms[BASELINE].mean, differential=entry.arms[ARM].mean, values=series,
        difference=difference.mean, interval=difference.interval,
        interval_is=made, differences=difference.values,
        seeds=difference.seeds, learned=entry.learned, line=entry.line,
        floor=None if floor is None else floor.guess, p=None if made is None else made.p,
    )  # fmt: skip


def _too_few(abilities: Sequence[Ability], left: Sequence[int], total: int) -> str:
    found = [reason for ability in abilities for reason in ability.reasons()]
    return f"{len(left)} of {total} pairs learned alike, five are needed ({'; '.join(found)})"


def _seeds(count: int) -> str:
    return f"{count} paired seed{'s' * (count != 1)}"
