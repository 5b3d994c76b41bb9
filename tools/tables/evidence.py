"""Tables of the studies in ``evidence.yaml``, from records of runs; ``page_tables.py`` writes them into pages.

The table of an unfinished study shows the finished runs and their number.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from antiphase.lab.statistics.blocks import Contrast
from antiphase.lab.statistics.intervals import mean_interval
from antiphase.lab.statistics.survival import compare_steps, survival
from antiphase.lab.studies.tune.measure import BEFORE
from experiments.evidence import Choice, best_of, count, studies
from experiments.evidence_effects import Effect, Levels, Results, compared, described, results, runs_of, steps_by_level

DEPARTURES = {
    "V1": "softmax", "gated softmax": "softmax", "sink logits": "softmax", "DEX from the first step": "softmax",
    "grouped": "V1", "V2": "softmax of V2's parameters", "V2 across groups": "V2", "V2 without λ": "V2",
    "V2 without sigmoid": "V2",
}  # fmt: skip
"""The arm of ``rivals`` that each arm departs from."""
SPIKES = "gradient spikes"
Rows = list[list[str]]
BOOKS = ("Moby-Dick", "Pride and Prejudice")
"""The held-out books, in the order of their files."""


def markdown(rows: Rows) -> str:
    """A table as Markdown, its first row the head."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"


@cache
def found(study: str) -> Results:
    """Held-out losses of the study's finished runs."""
    return results(runs_of(study), {name: list(levels) for name, levels in studies()[study]["factors"].items()})


def losses(study: str) -> Rows:
    """Held-out loss of every combination, mean and seeds: the first factors form the rows, the last one the columns."""
    known = found(study)
    *rest, last = known.factors
    head = [", ".join(rest), *(described(last, level) for level in known.factors[last])]
    rows = [head]
    for levels in itertools.product(*(known.factors[name] for name in rest)):
        cells = []
        for level in known.factors[last]:
            cells.append(_mean_and_seeds(known, (*levels, level)))
        rows.append([", ".join(described(name, level) for name, level in zip(rest, levels, strict=True)), *cells])
    return rows


def tuned(*names: str) -> Rows:
    """Held-out loss of every arm and start by learning rate, with one seed; bold where it is the arm's lowest."""
    runs = [run for name in names for run in runs_of(name)]
    rates = sorted({run["levels"]["rate"] for run in runs}, key=float)
    rows = [["arm, start", *(f"rate {rate}" for rate in rates), SPIKES]]
    losses = {
        (run["levels"]["arm"], run["levels"]["start"], run["levels"]["rate"]): run["values"]["final"]["loss"]
        for run in runs
    }
    for arm, start in dict.fromkeys(key[:2] for key in sorted(losses, key=_order(names))):
        best = min((loss for key, loss in losses.items() if key[0] == arm and loss is not None), default=None)
        cells = [_cell(losses.get((arm, start, rate), "–"), best) for rate in rates]
        own = [run for run in runs if (run["levels"]["arm"], run["levels"]["start"]) == (arm, start)]
        rows.append([f"{arm}, {described('start', start)}", *cells, _spikes(own)])
    return rows


def _spikes(runs: Sequence[Mapping[str, Any]]) -> str:
    """Gradient spikes of some runs, and the number of steps that were looked at: logged, and with enough before."""
    looked = 0
    for run in runs:
        training, diverged = run["settings"]["training"], run["values"].get("diverged")
        last = training["steps"] if diverged is None else diverged["step"]
        looked += max(0, last // training["log_every"] - BEFORE)
    return f"{sum(run['values']['spikes'] for run in runs):,} of {looked:,}" if runs else "–"


def _order(names: Sequence[str]) -> Callable[[tuple[str, ...]], tuple[int, ...]]:
    """Arms and starts in the order of the first study's levels."""
    factors = studies()[names[0]]["factors"]
    arms, starts = list(factors["arm"]), list(factors["start"])
    return lambda key: (arms.index(key[0]), starts.index(key[1]))


def _cell(loss: float | str | None, best: float | None) -> str:
    """
    Args:
        best: the arm's lowest loss; None if all its runs diverged.
    """
    if isinstance(loss, str):
        return loss
    if loss is None:
        return "diverged"
    return f"**{loss:.3f}**" if loss == best else f"{loss:.3f}"


def arms(common: str, best: str) -> Rows:
    """Held-out loss of every arm at the common setting and at its own: mean and seeds, spikes, and the settings."""
    shared = _words(best_of(studies()[common]["common_from"]))
    head = [
        "arm",
        "parameters",
        f"common setting: {shared}",
        SPIKES,
        "own setting",
        SPIKES,
        "own start and rate",
    ]
    rows = [head]
    sources = studies()[best]["chosen_from"]
    for arm in studies()[common]["factors"]["arm"]:
        own = {study: [run for run in runs_of(study) if run["levels"]["arm"] == arm] for study in (common, best)}
        count = next((f"{run['values']['parameters']:,}" for runs in own.values() for run in runs), "–")
        cells = [cell for study in own for cell in (_mean_and_seeds(found(study), (arm,)), _spikes(own[study]))]
        rows.append([arm, count, *cells, _words(best_of(sources, [arm]))])
    return rows


def _mean_and_seeds(known: Results, levels: Levels) -> str:
    """Mean over the seeds with a loss, and every finished seed in brackets."""
    row = known.losses[known.combinations.index(levels)]
    cells = [
        "diverged" if (levels, seed) in known.diverged else f"{loss:.3f}"
        for seed, loss in zip(known.seeds, row, strict=True)
        if (levels, seed) in known.diverged or not math.isnan(loss)
    ]
    ended = [loss for loss in row if not math.isnan(loss)]
    return f"{statistics.fmean(ended):.3f} [{', '.join(cells)}]" if ended else ", ".join(cells) or "–"


def _words(choice: Choice) -> str:
    return f"{described('start', choice.levels['start'])}, {choice.levels['rate']}"


def against(study: str, pairs: Mapping[str, str]) -> Rows:
    """Held-out loss of every arm, and its difference from the loss of the arm that it departs from.

    Args:
        pairs: for every arm that departs from another, the other.
    """
    known = found(study)
    parameters = {run["levels"]["arm"]: run["values"]["parameters"] for run in runs_of(study)}
    effects = {arm: known.contrast(compared(arm, other), {(arm,): 1.0, (other,): -1.0}) for arm, other in pairs.items()}
    rows = [["arm", "parameters", "held-out loss", "departs from", "difference", "95 % interval", "MDE"]]
    for (arm,) in known.combinations:
        count = f"{parameters[arm]:,}" if arm in parameters else "–"
        numbers = _numbers(effects[arm]) if arm in effects else ["–"] * 3
        other = described("arm", pairs[arm]) if arm in pairs else "–"
        rows.append([described("arm", arm), count, _mean_and_seeds(known, (arm,)), other, *numbers])
    return rows


def power(names: Sequence[str]) -> Rows:
    """How far losses vary beside their arms and seeds, and the difference of two arms that a study can see."""
    rows = [["study", "arms", "seeds", "residual standard deviation", "p that arms vary alike", "pooled", "MDE"]]
    for name in names:
        blocks = found(name).blocks
        if blocks is None:
            continue
        arms, seeds = blocks.values.shape
        p = "–" if blocks.pooling_p is None else f"{blocks.pooling_p:.2g}"
        sizes = [known.detectable for arm in blocks.arms[1:] if (known := blocks.difference(arm, blocks.arms[0]))]
        if blocks.is_pooled:
            sizes = sizes[:1]  # all are equal
        seen = " to ".join(f"{size:.2g}" for size in dict.fromkeys((min(sizes), max(sizes))))
        rows.append([name, str(arms), str(seeds), f"{blocks.spread:.2g}", p, "yes" if blocks.is_pooled else "no", seen])
    return rows


def variances(contrasts: Mapping[str, tuple[str, str]]) -> Rows:
    """What a contrast's verdict owes to the variance that is used: that of its own values, or of all residuals.

    Args:
        contrasts: an arm and another, by study.
    """
    rows = [["study", "difference", "estimate", "variance of its own values", "p", "of all residuals", "p",
             "p that arms vary alike", "used"]]  # fmt: skip
    for study, (arm, other) in contrasts.items():
        blocks = found(study).blocks
        assert blocks is not None, study
        ways = [blocks.contrast({(arm,): 1.0, (other,): -1.0}, pooled=pooled) for pooled in (False, True)]
        own, pooled = (way for way in ways if way is not None)
        rows.append([study, f"{arm} - {other}", f"{own.estimate:+.3f}", _interval(own), f"{own.p:.2g}",
                     _interval(pooled), f"{pooled.p:.2g}", f"{blocks.pooling_p:.2g}",
                     "all" if blocks.is_pooled else "its own"])  # fmt: skip
    return rows


def _interval(known: Contrast) -> str:
    return "{:+.3f} to {:+.3f}".format(*known.interval())


def equal_loss(study: str) -> Rows:
    """Share of softmax's tokens with which V1 has an equal loss, by laws L = E + A / tokens^a of each seed's own runs.

    Three runs determine a law. Softmax's is read at V1's loss, which after the longest training is below its last one,
    and V1's at softmax's loss. Intervals are Student's of the logarithms over seeds.
    """
    known = found(study)
    lengths = known.factors["steps"]
    tokens = [_tokens(study, length) for length in lengths]
    rows = [["trained on", "softmax's law at V1's loss", "V1's law at softmax's loss"]]
    needed: list[list[list[float]]] = [[], []]
    for seed in range(len(known.seeds)):
        softmax, differential = (
            [float(known.losses[known.combinations.index((arm, length)), seed]) for length in lengths]
            for arm in ("softmax", "V1")
        )
        laws = law_through(tokens, softmax), law_through(tokens, differential)
        needed[0].append([size / laws[0](loss) for size, loss in zip(tokens, differential, strict=True)])
        needed[1].append([laws[1](loss) / size for size, loss in zip(tokens, softmax, strict=True)])
    for place, size in enumerate(tokens):
        cells = []
        for shares in needed:
            logs = [math.log(by_seed[place]) for by_seed in shares]
            middle, *ends = (math.exp(value) for value in (statistics.fmean(logs), *(mean_interval(logs) or ())))
            cells.append(f"{100 * middle:.0f} % [{' to '.join(f'{100 * end:.0f}' for end in ends)}]")
        rows.append([f"{size / 1e6:.1f}M tokens", *cells])
    return rows


def law_through(tokens: Sequence[float], losses: Sequence[float]) -> Callable[[float], float]:
    """Tokens at a loss, by the law L = E + A / tokens^a through three points, each with twice the tokens before it."""
    exponent = math.log2((losses[0] - losses[1]) / (losses[1] - losses[2]))
    height = (losses[0] - losses[1]) / (tokens[0] ** -exponent - tokens[1] ** -exponent)
    floor = losses[0] - height * tokens[0] ** -exponent
    return lambda loss: (height / (loss - floor)) ** (1 / exponent)


def _tokens(study: str, steps: str) -> int:
    return next(run["values"]["tokens"] for run in runs_of(study) if run["levels"]["steps"] == steps)


def change_of_effect(study: str, factor: str, other: str) -> Rows:
    """How much a factor's difference at each level of another exceeds that at its first level."""
    known = found(study)
    one, two = known.factors[factor]
    first, *levels = known.factors[other]
    place = list(known.factors).index(factor)

    def key(level: str, at: str) -> tuple[str, ...]:
        return (level, at) if place == 0 else (at, level)

    return _effects(
        [
            known.contrast(
                f"difference at {described(other, level)} against that at {described(other, first)}",
                {key(two, level): 1.0, key(one, level): -1.0, key(two, first): -1.0, key(one, first): 1.0},
            )
            for level in levels
        ],
    )


def main_effects(study: str) -> Rows:
    """Effects of every factor and of every pair of factors."""
    known = found(study)
    return _effects([*known.main_effects(), *known.interactions()])


def against_softmax(study: str) -> Rows:
    """Every arm compared with softmax, and softmax that has a head norm too with V1 and with the middle of both."""
    known = found(study)
    norm = ("softmax with norm",)
    normed = known.contrast("V1 against softmax with norm", {("V1",): 1.0, norm: -1.0})
    middle: dict[Levels, float] = {norm: 1.0, ("softmax",): -0.5, ("V1",): -0.5}
    half = known.contrast("softmax with norm against the mean of softmax and V1", middle)
    return _effects([*known.simple_effects("arm"), normed, half])


def simple_effects(study: str, factor: str) -> Rows:
    """Effects of one factor at every combination of the others."""
    return _effects(found(study).simple_effects(factor))


def by_book(study: str, factor: str) -> Rows:
    """Estimates of ``simple_effects`` on each held-out book alone."""
    factors = {name: list(levels) for name, levels in studies()[study]["factors"].items()}
    rows = [[f"effect on the loss on one book, nats per token: {factor}", *BOOKS]]
    columns = []
    for document in map(str, range(len(BOOKS))):
        runs = []
        for run in runs_of(study):
            known = run["values"]["block_losses"]
            if known is None:  # it diverged
                runs.append(run)
                continue
            blocks = known[document]
            alone = {"final": {"loss": statistics.fmean(blocks)}}
            runs.append({**run, "values": alone})
        columns.append(results(runs, factors).simple_effects(factor))
    return rows + [
        [effects[0].name, *(_numbers(effect)[0] for effect in effects)] for effects in zip(*columns, strict=True)
    ]


def progress() -> Rows:
    """Number of runs with a record by study, and of seeds whose runs were not all made on one kind of processor."""
    rows = [["study", "question", "finished runs", "seeds on two kinds of processor"]]
    for name, study in studies().items():
        runs = runs_of(name)
        made_on: dict[int, set[str]] = {}
        for run in runs:
            made_on.setdefault(run["seed"], set()).add(run["environment"]["processor"])
        mixed = sum(len(kinds) > 1 for kinds in made_on.values())
        rows.append([name, study["question"].strip(), f"{len(runs)} of {count(study)}", str(mixed)])
    return rows


def learned(study: str, factor: str) -> Rows:
    """Runs that passed 50 %, the step by which half had, and hazard ratio and log-rank test against the first arm."""
    steps, until = steps_by_level(runs_of(study), factor, list(studies()[study]["factors"][factor]))
    rows = [[factor, "passed 50 %", "half had passed by step", "95 %", "hazard ratio to the first", "95 %",
             "log-rank p"]]  # fmt: skip
    first = next(iter(steps.values()))
    for level, own in steps.items():
        found, ratio = survival(own, until), None if own is first else compare_steps(own, first)
        middle, *ends = ("never" if step is None else f"{step:,}" for step in (found.median, *found.median_interval))
        compared = ["–"] * 3
        if ratio is not None:
            compared = [f"{ratio.ratio:.2f}", "{:.2f} to {:.2f}".format(*ratio.interval), f"{ratio.p:.2g}"]
        rows.append([level, f"{found.passed} of {found.seeds}", middle, " to ".join(ends), *compared])
    return rows


def _effects(effects: list[Effect]) -> Rows:
    rows = [["effect on the held-out loss, nats per token", "estimate", "95 % interval", "MDE"]]
    return rows + [[effect.name, *_numbers(effect)] for effect in effects]


def _numbers(effect: Effect) -> list[str]:
    """The estimate, the interval and the MDE."""
    known = effect.found
    return ["–"] * 3 if known is None else [f"{known.estimate:+.3f}", _interval(known), f"{known.detectable:.3f}"]


def passes(study: str) -> Rows:
    """The step at which each seed passed 50 %: the first factor forms the rows, the last one the columns."""
    known = runs_of(study)
    row_factor, column_factor = studies()[study]["factors"]
    columns = list(studies()[study]["factors"][column_factor])
    rows = [[row_factor, *(f"{column_factor} {level}" for level in columns)]]
    for name in studies()[study]["factors"][row_factor]:
        cells = []
        for level in columns:
            chosen = sorted(
                (run["seed"], run["values"]["passes"])
                for run in known
                if run["levels"] == {row_factor: name, column_factor: level}
            )
            cells.append(", ".join("never" if step is None else f"{step:,}" for _, step in chosen) or "–")
        rows.append([name, *cells])
    return rows


TABLES: dict[str, Callable[[], Rows]] = {
    "demo-rates": lambda: passes("demo-rates"),
    "evidence": progress,
    "factorial": lambda: losses("factorial"),
    "factorial-attention": lambda: simple_effects("factorial", "attention"),
    "factorial-start": lambda: simple_effects("factorial", "start"),
    "factorial-start-by-book": lambda: by_book("factorial", "start"),
    "factorial-effects": lambda: main_effects("factorial"),
    "outputs": lambda: losses("outputs"),
    "outputs-effects": lambda: [
        *simple_effects("outputs", "outputs"),
        *simple_effects("outputs", "attention")[1:],
    ],
    "heads-of-width-16": lambda: losses("heads-of-width-16"),
    "heads-of-width-16-effects": lambda: simple_effects("heads-of-width-16", "attention"),
    "heads-of-one-model": lambda: losses("heads-of-one-model"),
    "heads-of-one-model-effects": lambda: [
        *simple_effects("heads-of-one-model", "attention"),
        *(
            [f"differential heads, {name}", *numbers]
            for name, *numbers in simple_effects("heads-of-one-model", "differential heads")[2::2]
        ),  # 8 against 2
    ],
    "tied": lambda: losses("tied"),
    "tied-effects": lambda: [
        *simple_effects("tied", "attention"),
        *simple_effects("tied", "head")[1:],
        main_effects("tied")[-1],  # the interaction
    ],
    "precision": lambda: losses("precision"),
    "precision-effects": lambda: [
        *simple_effects("precision", "precision"),
        *simple_effects("precision", "attention")[1:],
    ],
    "grid": lambda: tuned("grid", "grid-above", "grid-above-start-0.02"),
    "steps": lambda: losses("steps"),
    "steps-effects": lambda: [
        *simple_effects("steps", "attention"),
        *change_of_effect("steps", "attention", "steps")[1:],
    ],
    "steps-own": lambda: losses("steps-own"),
    "steps-own-effects": lambda: [
        *simple_effects("steps-own", "arm"),
        *change_of_effect("steps-own", "arm", "steps")[1:],
    ],
    "five-arms": lambda: arms("five-arms", "best"),
    "five-arms-effects": lambda: against_softmax("five-arms"),
    "five-arms-by-book": lambda: by_book("five-arms", "arm"),
    "best-effects": lambda: against_softmax("best"),
    "best-by-book": lambda: by_book("best", "arm"),
    "rivals": lambda: against("rivals", DEPARTURES),
    "power": lambda: power(
        [
            "factorial",
            "heads-of-width-16",
            "heads-of-one-model",
            "tied",
            "precision",
            "steps",
            "steps-own",
            "five-arms",
            "best",
            "rivals",
        ]
    ),
    "variances": lambda: variances({"best": ("V1", "softmax"), "rivals": ("gated softmax", "softmax")}),
    "equal-loss": lambda: equal_loss("steps"),
    "survival": lambda: learned("survival", "attention"),
    "norm-weight": lambda: main_effects("norm-weight"),
    "norm-weight-start-0.02": lambda: main_effects("norm-weight-start-0.02"),
    "lambda": lambda: main_effects("lambda"),
}
"""By the names that stand in pages."""
