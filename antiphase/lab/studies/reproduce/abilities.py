"""What models must have learned before they can show a claim: pairs of equal ability, and why records cannot show it.

A claim about where models attend, or about what both can do, is meaningful only for pairs whose two models learned
equally much by the claim's own primary measure. No pair is left out for that, because the rest would be no fair sample:
where one does not match, whichever arm is behind, the claim is not judged.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphase.lab.measures.hallucination import GOLD, MODEL, WRONG
from antiphase.lab.statistics.intervals import mean_interval, wilson_interval
from antiphase.lab.studies.metrics import CEILING, FLOOR_MARGIN
from antiphase.lab.studies.reproduce.readings import (
    ARM,
    ARMS,
    BASELINE,
    Floor,
    Found,
    OfModel,
    Series,
    cells_of_allocation,
    compared,
    flips,
    found_there,
    in_orders,
    loss_at_the_end,
    lost_to_four_bits,
    majority,
    mean_of_orders,
    of_system,
    pooled,
    seeds_of,
    telling_cells,
)

ACCURACY_WITHIN = 0.1
"""Share of right answers by which the two models of a pair may differ."""
LOSS_WITHIN, MEAN_LOSS_WITHIN = 0.1, 0.01
"""Nats a token by which the models of a pair may differ, and by which an arm may be worse on average over pairs."""
FEWEST_IN_ORDERS = 200
"""Rows asked in every order: of fewer, flips between orders are mostly chance."""
MOSTLY_COPIED = 0.9
"""Share of a summary's words in runs taken from the text from which on it counts as a copy."""
LEAST_LOST = 1e-3
"""Nats a token that few bits must cost before the arms can be compared."""
NO_BETTER = "not shown to beat a guess"
NO_ROOM = "the models are on the floor or the ceiling"
Lacking = Mapping[str, Sequence[set[str]]]
"""Reason to the arms for which it holds, seed by seed."""


@dataclass(frozen=True)
class Ability:
    """What both models of a pair must have to a similar degree."""

    lacking: Lacking
    values: Series
    """Shows which arm has more of it on average, over pairs."""
    mean_within: float | None = None
    """By how much less the arm that is better in the claim's measure may have; None: not checked."""
    is_loss: bool = False

    def reasons(self) -> list[str]:
        """``right less often by more than 10 points: differential in 2 of 5 seeds``."""
        return [
            words for reason, arms in self.lacking.items()
            if (words := named(reason, {arm: (sum(arm in of for of in arms), len(arms)) for arm in (BASELINE, ARM)}))
        ]  # fmt: skip

    def less(self, arm: str) -> str | None:
        """How an arm has less of it than the other, on average over seeds."""
        if self.mean_within is None:
            return None
        means = {
            name: statistics.fmean(value for value in values if value is not None)
            for name, values in self.values.items()
        }
        behind = means[arm] - means[BASELINE if arm == ARM else ARM]
        if (behind if self.is_loss else -behind) <= self.mean_within:
            return None
        if self.is_loss:
            return f"the {arm} models have a higher loss, and a model that has learned less scores better here"
        shown = ", ".join(f"{name} {100 * mean:.0f} %" for name, mean in means.items())
        return f"the {arm} models are right less often ({shown})"


def named(reason: str, counts: Mapping[str, tuple[int, int]]) -> str | None:
    """The reason with the arms that it holds for in some seeds; None: in none."""
    shown = [f"{arm} in {count} of {seeds} seeds" for arm, (count, seeds) in counts.items() if count]
    return f"{reason}: {', '.join(shown)}" if shown else None


def failing(series: Series, passes: Callable[[float], bool]) -> str | None:
    """Arms of which some seeds do not pass, with how many."""
    return named(NO_BETTER, {
        arm: (sum(value is None or not passes(value) for value in values), len(values))
        for arm, values in series.items()
    })  # fmt: skip


def equally_right(values: Series, floor: Floor) -> Ability:
    """Both beat a guess, and neither is right more often than the other by more than ten points."""
    guess, behind = [], []
    for one, two in zip(values[BASELINE], values[ARM], strict=True):
        pair = {BASELINE: one, ARM: two}
        guess.append({arm for arm, value in pair.items() if value is None or not floor.exceeded_by(value)})
        behind.append(_behind(pair, ACCURACY_WITHIN, is_loss=False))
    words = f"right less often by more than {100 * ACCURACY_WITHIN:.0f} points"
    return Ability({NO_BETTER: guess, words: behind}, values, FLOOR_MARGIN)


def equally_trained(found: Found, models: Sequence[OfModel[Any]]) -> list[Ability]:
    """Similar held-out loss, and either both retrieve or neither does, for the seeds of these models. Empty without a
    comparison.
    """
    if found.compare is None:
        return []
    places = [found.seeds.index(seed) for seed in seeds_of(models)]
    losses, accuracies = (
        {arm: [values[place] for place in places] for arm, values in compared(name)(found).items() if values}
        for name in ("held-out loss", "first-query accuracy")
    )
    pairs = [{BASELINE: one, ARM: two} for one, two in zip(losses[BASELINE], losses[ARM], strict=True)]
    unknown = [{arm for arm, value in pair.items() if value is None} for pair in pairs]
    higher = [_behind(pair, LOSS_WITHIN, is_loss=True) for pair in pairs]
    lacking = {"no loss": unknown, f"higher loss by more than {LOSS_WITHIN:g} nats": higher}
    if accuracies:
        floor = Floor(found.compare.guess_rate or 0.0, found.curve_samples)
        blind = []
        for one, two in zip(accuracies[BASELINE], accuracies[ARM], strict=True):
            not_found = {arm for arm, value in ((BASELINE, one), (ARM, two)) if not floor.exceeded_by(value or 0.0)}
            blind.append(not_found if len(not_found) == 1 else set())
        lacking["not retrieving where the other does"] = blind
    return [Ability(lacking, losses, MEAN_LOSS_WITHIN, is_loss=True)]


def _behind(pair: Mapping[str, float | None], within: float, *, is_loss: bool) -> set[str]:
    one, two = pair[BASELINE], pair[ARM]
    if one is None or two is None or abs(one - two) <= within + 1e-9:
        return set()
    return {ARM if (two > one) == is_loss else BASELINE}


def no_higher_at_the_end(found: Found) -> list[Ability]:
    """Who has learned less can lose more without its context, and so gain more from it."""
    return [Ability({}, loss_at_the_end(found), 0.0, is_loss=True)]


def finding(found: Found) -> list[Ability]:
    """Where an arm attends means little while it finds no answers: a model that attends to one token has no noise."""
    floor = pooled(cells_of_allocation(found).values())
    return [] if floor is None else [equally_right(found_there(found), floor)]


def naming_labels(found: Found) -> list[Ability]:
    """A constant predictor answers alike in every order, so its flips of 0 are no robustness."""
    floor = majority(found)
    return [] if floor is None else [equally_right(mean_of_orders(found), floor)]


# ------------------------------------------------------------------------------------------ what records cannot show


def was_asked(found: Found) -> str | None:
    """Whether the records say how often the models find the answer that they look for."""
    if not found.needles:
        return "it needs the part needles, which says whether the models find the answers"
    return None if cells_of_allocation(found) else "the part needles was not run with as many needles"


def can_tell(found: Found) -> str | None:
    """Whether any cell of the needle grid leaves room for a difference."""
    return None if telling_cells(found) else NO_ROOM


def has_orders(found: Found) -> str | None:
    """Enough answers in every order, from models that could do better and for which the order matters."""
    asked = sum(task.samples for task, _ in in_orders(found.many_shot[0].result))
    if not asked:
        return "no orders were drawn"
    if statistics.fmean(_of_pairs(mean_of_orders(found)) or [0.0]) >= CEILING:
        return "the models are on the ceiling"
    if asked < FEWEST_IN_ORDERS:
        return f"{asked} rows were asked in every order, {FEWEST_IN_ORDERS} are needed"
    if statistics.fmean(_of_pairs(flips(found)) or [0.0]) <= FLOOR_MARGIN:
        return "the order changes nothing"
    return None


def _of_pairs(series: Series) -> list[float]:
    """Mean of both models of each pair. A rule about one arm alone, on the data that are tested, would favour one."""
    return [
        (one + two) / 2
        for one, two in zip(series[BASELINE], series[ARM], strict=True)
        if one is not None and two is not None
    ]


def knows_gain(found: Found) -> str | None:
    """Whether windows were scored with little context too."""
    if any(model.result.tail is None for model in found.long_context):
        return "the records have no loss with little context, so the gain from context is not known"
    return None


def costs_something(found: Found) -> str | None:
    """Where few bits cost nothing, nothing can cost less."""
    lost = _of_pairs(lost_to_four_bits(found))
    interval = mean_interval(lost)
    if (lost and statistics.fmean(lost) < LEAST_LOST) or (interval is not None and interval[0] <= 0):
        return "4 bits cost the models nothing"
    return None


def is_judged(found: Found) -> str | None:
    """Verdicts count if the judge distinguishes true from false texts and answers, and the models do not just copy."""
    yes = {}
    for role in (GOLD, WRONG):
        own = of_system(found.hallucination[0].result, role)
        right = sum(row.right for row in own)
        yes[role] = wilson_interval(right, right + sum(row.wrong - row.empty for row in own))
    if yes[GOLD][0] <= yes[WRONG][1]:
        return "the judge does not tell references from references made wrong"
    written = [row for model in found.hallucination for row in of_system(model.result, MODEL)]
    unjudged, samples = sum(row.unjudged for row in written), sum(row.samples for row in written)
    if unjudged > FLOOR_MARGIN * samples:
        return f"the judge gave no verdict on {unjudged} of {samples} outputs"
    for arm in ARMS:
        tasks = [task for model in found.hallucination if model.arm == arm for task in model.result.tasks.values()]
        rows = [row for task in tasks if task.kind == "summarization" for row in task.systems if row.system == MODEL]
        copied = [row.copied for row in rows if row.copied is not None]
        if copied and statistics.fmean(copied) > MOSTLY_COPIED:
            return f"the {arm} models copy the texts that they should summarise"
    return None
