"""Loss over model sizes and over training tokens, arm by arm, with laws fitted to them: ``antiphase scaling``.

Every size and every budget of tokens is a run of its own with its own decay (2410.05258, section 3.2).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.pages.tables import present
from antiphase.lab.settings.presets import Preset, RunSettings, TrainingSettings
from antiphase.lab.statistics.intervals import mean_interval
from antiphase.lab.studies.grid import Grid, Variant
from antiphase.lab.studies.jobs import Job, Report
from antiphase.lab.studies.plan import Plan
from antiphase.lab.studies.scaling import FittedLaw, Ladder, Point, ScaledRun, Scaling, ScalingSettings
from antiphase.lab.studies.scaling.laws import FEWEST_POINTS, Losses, ends_on_a_bound, equal_loss, fit_law, seed_laws
from antiphase.lab.text.tokenization import id_count
from antiphase.lab.training.execution.choice import executor_of
from antiphase.lab.training.execution.executor import Executor
from antiphase.lab.training.execution.local import LOCAL

AXES = {"size": "parameters", "size without embeddings": "non_embedding_parameters", "tokens": "tokens"}
"""What the loss is drawn over, and the value of a run that it is."""


def plan(settings: ScalingSettings, output: Path) -> Plan:
    """``scaling`` with these settings."""
    preset, executor = settings.chosen_preset(), executor_of(settings)
    work = partial(scaling, preset, widths=settings.widths, steps=settings.steps, executor=executor)
    ladders = _ladders(preset.run, settings.widths, settings.steps)
    return Plan.of_runs(work, Grid(preset, output, list(chain(*ladders.values()))).jobs, [])


def scaling(
    preset: Preset,
    output: Path,
    *,
    widths: Sequence[int],
    steps: Sequence[int],
    resume: bool = False,
    report: Report = lambda job, step, values: None,
    say: Callable[[str], None] = lambda message: None,
    executor: Executor = LOCAL,
) -> Record:
    """Train every arm with every seed at every width (the preset's steps) and for every number of steps (its width).

    Depth, heads and the width of the MLP grow with the width, as in the preset. The record of kind "scaling" has the
    runs, a law for each arm and axis where there are at least four sizes, and what each arm needs for the loss of the
    first arm's largest run.

    Raises:
        InputError, Interrupted: as for ``compare``.
    """
    ladders = _ladders(preset.run, widths, steps)
    asked = {"widths": list(widths), "steps": list(steps)}
    grid = Grid(preset, output, list(chain(*ladders.values())), asked, executor)
    arms, seeds = list(preset.compare.arms), preset.compare.seeds
    started = time.perf_counter()
    with grid.held(resume=resume, say=say) as data:
        grid.train(report, say)
        runs = {job.name: _run_row(grid, job, vocabulary=id_count(data.tokenizer)) for job in grid.jobs}
        found = [
            ladder_of(
                axis, [runs[grid.name(one, arm, seed)] for one in ladder for seed in seeds for arm in arms], arms, seeds
            )
            for name, ladder in ladders.items()
            for axis in AXES
            if ladder and axis.startswith(name)
        ]
        return grid.save("scaling", Scaling(arms, list(runs.values()), found), started=started)


def _ladders(run: RunSettings, widths: Sequence[int], steps: Sequence[int]) -> dict[str, list[Variant]]:
    """
    Raises:
        InputError: numbers that are equal or below 1, or none.
    """
    for flag, numbers in (("--widths", widths), ("--steps", steps)):
        if len(set(numbers)) < len(numbers) or any(number < 1 for number in numbers):
            raise InputError(f"{flag} must be different whole numbers from 1, got {', '.join(map(str, numbers))}")
    if not widths and not steps:
        raise InputError("--widths or --steps is missing: give at least one of them")
    return {
        "size": [_variant(width, run.training.steps) for width in widths],
        "tokens": [_variant(run.model.hidden_size, count) for count in steps],
    }


def _variant(width: int, steps: int) -> Variant:
    """Runs of a width and a number of steps; a run may stand on the ladder of sizes and on that of tokens."""
    return Variant(
        f"width{width}-steps{steps}",
        lambda run: resized(replace(run, training=replace(run.training, steps=steps, decay_steps=None)), width),
        lambda run: replace(run, training=shortened(run.training, steps)),
    )


def shortened(training: TrainingSettings, steps: int) -> TrainingSettings:
    """A run of another number of steps with a decay of its own, and a warm-up of at most a tenth of them."""
    warmup = min(training.warmup_steps, max(1, steps // 10))
    return replace(training, steps=steps, decay_steps=None, warmup_steps=warmup)


def resized(run: RunSettings, width: int) -> RunSettings:
    """The run at another width; depth, number of heads and MLP in proportion.

    Raises:
        InputError: a width that whole heads do not fill.
    """
    model = run.model
    head = model.head_dim or model.hidden_size // model.num_attention_heads
    if width == model.hidden_size:
        return replace(run, model=replace(model, head_dim=head))
    heads, rest = divmod(width, head)
    if rest or heads < 2 or heads % 2:
        raise InputError(
            f"--widths {width} is not an even number of heads of width {head}; give multiples of {2 * head}"
        )
    factor = width / model.hidden_size
    groups = model.num_key_value_heads
    if groups is not None:
        repeats = model.num_attention_heads // groups
        if heads % repeats or (heads // repeats) % 2:
            raise InputError(f"--widths {width}: its {heads} heads cannot share keys {repeats} by {repeats}, as here")
        groups = heads // repeats
    return replace(
        run,
        model=replace(
            model,
            hidden_size=width,
            num_attention_heads=heads,
            num_key_value_heads=groups,
            head_dim=head,
            num_hidden_layers=max(1, round(model.num_hidden_layers * factor)),
            intermediate_size=max(8, 8 * round(model.intermediate_size * factor / 8)),
        ),
    )


def _run_row(grid: Grid, job: Job, *, vocabulary: int) -> ScaledRun:
    """
    Args:
        vocabulary: rows that the tokenizer's ids need; the table of embeddings may have more.
    """
    run, model = grid.result(job), job.settings.model
    rows = vocabulary if model.vocab_size is None else model.vocab_size
    embeddings = rows * model.hidden_size * (1 if model.tie_word_embeddings else 2)
    return ScaledRun(
        arm=job.arm,
        seed=job.seed,
        width=model.hidden_size,
        layers=model.num_hidden_layers,
        steps=job.settings.training.steps,
        parameters=run.parameters,
        non_embedding_parameters=run.parameters - embeddings,
        tokens=job.tokens,
        loss=run.final.loss,
        accuracy=run.final.accuracy,
        diverged=run.diverged,
    )


def ladder_of(axis: str, runs: Sequence[ScaledRun], arms: Sequence[str], seeds: Sequence[int]) -> Ladder:
    """Losses of each arm over one axis, the law through them, and what each arm needs for the first one's best loss."""
    measured: dict[str, dict[float, list[float | None]]] = {arm: {} for arm in arms}
    for run in sorted(runs, key=lambda run: (getattr(run, AXES[axis]), seeds.index(run.seed))):
        measured[run.arm].setdefault(float(getattr(run, AXES[axis])), []).append(run.loss)
    points = [Point(arm, x, losses) for arm, by_x in measured.items() for x, losses in by_x.items()]
    by_arm = {arm: {x: present(losses) for x, losses in by_x.items()} for arm, by_x in measured.items()}
    found = Ladder(axis=axis, points=points)
    if any(loss is None for point in points for loss in point.losses):
        return replace(found, why_no_law="a model's loss is not finite")
    if min(map(len, by_arm.values())) < FEWEST_POINTS:
        return replace(found, why_no_law=f"a law needs at least {FEWEST_POINTS} sizes")
    laws = {arm: _law(by_x) for arm, by_x in by_arm.items()}
    equal, why = {}, None
    for arm in arms[1:]:
        pair = (arms[0], arm)
        if stuck := [one for one in pair if not _falls(by_arm[one])]:
            why = f"the loss of {' and '.join(stuck)} does not fall with every step in {axis}"
        elif bent := [one for one in pair if ends_on_a_bound(laws[one], by_arm[one].values())]:
            why = f"no power law describes the loss of {' and '.join(bent)} over {axis}"
        else:
            equal[arm] = equal_loss(by_arm[arms[0]], by_arm[arm])
    return replace(found, laws=laws, equal_loss=equal, why_no_equal_loss=why)


ZERO = 1e-3
"""Share of the lowest loss below which a floor is at its bound."""


def _law(losses: Losses) -> FittedLaw:
    """Through all seeds, with the spread of the laws of single seeds.

    A floor or exponent that a seed's law has at a bound says nothing of its spread, nor of that of the other.
    """
    pairs = [(x, loss) for x, of_seeds in losses.items() for loss in of_seeds]
    single, lowest = seed_laws(losses), min(map(min, losses.values()))
    at_bound = any(law.floor < ZERO * lowest or ends_on_a_bound(law, losses.values()) for law in single)
    ends = {
        name: None if at_bound else mean_interval([getattr(law, name) for law in single])
        for name in ("floor", "exponent")
    }
    fitted = fit_law([x for x, _ in pairs], [loss for _, loss in pairs])
    return FittedLaw(**asdict(fitted), intervals={name: end and list(end) for name, end in ends.items()})


def _falls(losses: Losses) -> bool:
    """Whether more was always better: a law through anything else says little about sizes that were not trained."""
    means = [statistics.fmean(losses[x]) for x in sorted(losses)]
    return all(after < before for before, after in pairwise(means))
