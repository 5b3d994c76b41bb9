"""A word on each claim of the paper, by rule, from records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from antiphase.lab.statistics.verdicts import verdict
from antiphase.lab.studies.metrics import CEILING, FLOOR_MARGIN, compare_metric
from antiphase.lab.studies.outcomes import LearnedThreshold, learned_words
from antiphase.lab.studies.reproduce import Judgement
from antiphase.lab.studies.reproduce.abilities import NO_ROOM, failing
from antiphase.lab.studies.reproduce.claims import CLAIMS, PaperClaim
from antiphase.lab.studies.reproduce.readings import ARM, BASELINE, Floor, Found, Series


def judge_all(found: Found, why_missing: Mapping[str, str], *, diverged: Sequence[int] = ()) -> list[Judgement]:
    """All claims."""
    return [judge(claim, found, why_missing, diverged=diverged) for claim in CLAIMS]


def judge(
    claim: PaperClaim, found: Found, why_missing: Mapping[str, str], *, diverged: Sequence[int] = ()
) -> Judgement:  # fmt: skip
    """Both arms' means, their paired difference with interval and MDE, and a word beside the paper's effect.

    Args:
        diverged: seeds that were not measured, because a model's loss was not finite; the others are no fair sample.
    """
    metric = claim.metric
    row = Judgement(
        claim=claim.name, source=claim.source, paper=claim.paper, part=claim.part,
        measured=claim.measured.format(cells="no cell"), unit=metric.unit, digits=metric.digits,
        is_share=metric.is_share, lower_is_better=metric.lower_is_better, effect=claim.effect, verdict="cannot tell",
    )  # fmt: skip
    lost = f"a model diverged in {_seeds(len(diverged))}" if diverged else None
    if not found.has(claim.part):
        return replace(row, reason=lost or why_missing.get(claim.part, "this part was not asked for"))
    series = claim.read(found)
    guarded = claim.guard(found)
    if all(value is None for values in series.values() for value in values):
        return replace(row, reason=guarded or "nothing was measured")
    floor = claim.floor(found)
    row = _with_numbers(row, claim, found, series, floor)
    if guarded is not None:
        return replace(row, reason=guarded)
    abilities = claim.abilities(found)
    if unlike := [reason for ability in abilities for reason in ability.reasons()]:
        return replace(row, reason=f"the models of a pair did not learn alike ({'; '.join(unlike)})")
    if lost is not None:
        return replace(row, reason=lost)
    if (row.seeds or 0) < len(series[BASELINE]):
        return replace(row, reason="some seeds have no value")
    mean = ((row.softmax or 0.0) + (row.differential or 0.0)) / 2
    if floor is not None and not floor.guess + FLOOR_MARGIN < mean < CEILING:
        return replace(row, reason=NO_ROOM)
    if row.learned is not None:
        return replace(row, reason=f"counts of models that learned show no difference: {learned_words(row.learned)}")
    if row.interval is None:
        return replace(row, reason="one seed has no interval")
    low, high = row.interval
    said = verdict((low, high), lower_is_better=row.lower_is_better, detectable=row.detectable, paper=row.effect)
    better = ARM if said.word == "agrees" else BASELINE
    for ability in abilities:
        if said.word != "cannot tell" and (less := ability.less(better)) is not None:
            return replace(row, reason=less)
    blind = [] if floor is None else [failing(series, floor.exceeded_by)]
    return replace(row, verdict=said.word, reason=", ".join(filter(None, [said.reason, *blind])))


def _with_numbers(row: Judgement, claim: PaperClaim, found: Found, series: Series, floor: Floor | None) -> Judgement:
    """The row with what was measured."""
    threshold = None if floor is None else LearnedThreshold.of(floor.guess)
    entry = compare_metric(claim.metric, series, BASELINE, threshold=threshold)
    assert entry is not None  # some value is known
    difference = entry.differences[ARM]
    return replace(
        row, measured=claim.measured.format(cells=claim.cells(found)), pairs=len(series[BASELINE]),
        softmax=entry.arms[BASELINE].mean, differential=entry.arms[ARM].mean, values=series,
        difference=difference.mean, interval=difference.interval, detectable=difference.detectable,
        differences=difference.values, seeds=difference.seeds, learned=entry.learned, line=entry.line,
        floor=None if floor is None else floor.guess,
    )  # fmt: skip


def _seeds(count: int) -> str:
    return f"{count} paired seed{'s' * (count != 1)}"
