"""Loss over model sizes and over training tokens, arm by arm, with laws fitted to them: ``antiphase scaling``.

Every size and every budget of tokens is a run of its own with its own decay (2410.05258, section 3.2).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from antiphase.config import Preset, RunSettings, TrainingSettings, arm_run
from antiphase.data.prepare import prepare
from antiphase.errors import InputError
from antiphase.evals.statistics import mean_interval
from antiphase.folders.contents import check_content
from antiphase.folders.held import only_one
from antiphase.records import Record, finite
from antiphase.studies.compare import check_sizes, check_study, setting_up
from antiphase.studies.jobs import Job, Report, parallel_runs, run_jobs
from antiphase.studies.laws import FEWEST_POINTS, Law, equal_loss, fit_law, seed_laws

AXES = {"size": "parameters", "size without embeddings": "non_embedding_parameters", "tokens": "tokens"}
"""What the loss is drawn over, and the value of a run that it is."""


def scaling(
    preset: Preset,
    output: Path,
    *,
    widths: Sequence[int],
    steps: Sequence[int],
    resume: bool = False,
    report: Report = lambda job, step, values: None,
    say: Callable[[str], None] = lambda message: None,
) -> Record:
    """Train every arm with every seed at every width (the preset's steps) and for every number of steps (its width).

    Depth, heads and the width of the MLP grow with the width, as in the preset. The record of kind "scaling" has the
    runs, a law for each arm and axis where there are at least four sizes, and what each arm needs for the loss of the
    first arm's largest run.

    Raises:
        InputError, Interrupted: as for ``compare``.
    """
    for flag, numbers in (("--widths", widths), ("--steps", steps)):
        if len(set(numbers)) < len(numbers) or any(number < 1 for number in numbers):
            raise InputError(f"{flag} must be different whole numbers from 1, got {', '.join(map(str, numbers))}")
    if not widths and not steps:
        raise InputError("--widths or --steps is missing: what is to grow?")
    jobs, ladders = _jobs(preset, output, widths, steps)
    shown = {"run": asdict(preset.run), "compare": asdict(preset.compare), "widths": list(widths), "steps": list(steps)}
    check_study(output, shown, resume=resume)
    with only_one(output):
        started = time.perf_counter()
        with setting_up(output, shown):
            data = prepare(jobs[0].settings.data, output / "tokens", progress=say)
            check_sizes(preset, jobs, data)
            check_content(output, data.content)
        cores = os.cpu_count() or 1
        at_once = parallel_runs(jobs, preset.compare.processes, cores)
        run_jobs(jobs, output, processes=at_once, cores=cores, report=report)
        runs = {job.name: _run_row(job, output, vocabulary=len(data.tokenizer)) for job in jobs}
        record = Record(
            kind="scaling",
            values=finite(
                {
                    "arms": list(preset.compare.arms),
                    "runs": list(runs.values()),
                    "ladders": [
                        _ladder(axis, [runs[name] for name in names], list(preset.compare.arms), preset.compare.seeds)
                        for ladder, names in ladders.items()
                        for axis in AXES
                        if axis.startswith(ladder)
                    ],
                }
            ),
            config=finite({"preset": preset.name, **shown}),
            seeds=list(preset.compare.seeds),
            seconds=time.perf_counter() - started,
        )
        record.save(output)
    return record


def _jobs(
    preset: Preset, output: Path, widths: Sequence[int], steps: Sequence[int]
) -> tuple[list[Job], dict[str, list[str]]]:
    """Runs, and the names of those on the ladder of sizes and on that of tokens; a run may stand on both."""
    base = preset.run
    if base.data.source == "text":
        base = replace(base, data=replace(base.data, cache=str(output / "tokens")))
    points = [("size", width, base.training.steps) for width in widths]
    points += [("tokens", base.model.hidden_size, count) for count in steps]
    jobs: dict[str, Job] = {}
    ladders: dict[str, list[str]] = {}
    for ladder, width, count in points:
        run = replace(resized(base, width), training=replace(base.training, steps=count, decay_steps=None))
        for seed in preset.compare.seeds:
            for arm in preset.compare.arms:
                name = f"{arm}-width{width}-steps{count}-seed{seed}"
                settings = arm_run(run, preset.compare, arm, seed=seed)
                settings = replace(settings, training=shortened(settings.training, count))
                jobs[name] = Job(name, arm, seed, settings)
                ladders.setdefault(ladder, []).append(name)
    return list(jobs.values()), ladders


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


def _run_row(job: Job, output: Path, *, vocabulary: int) -> dict[str, Any]:
    values = Record.load(output / job.name).values
    model = job.settings.model
    embeddings = vocabulary * model.hidden_size * (1 if model.tie_word_embeddings else 2)
    training = job.settings.training
    return {
        "arm": job.arm,
        "seed": job.seed,
        "width": model.hidden_size,
        "layers": model.num_hidden_layers,
        "steps": training.steps,
        "parameters": values["parameters"],
        "non_embedding_parameters": values["parameters"] - embeddings,
        "tokens": training.steps * training.batch_size * job.settings.data.sequence_length,
        "loss": values["final"]["loss"],
        "accuracy": values["final"]["accuracy"],
        "diverged": values.get("diverged"),
    }


def _ladder(axis: str, runs: Sequence[dict[str, Any]], arms: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Losses of each arm over one axis, the law through them, and what each arm needs for the first one's best loss."""
    by_arm: dict[str, dict[float, list[float]]] = {arm: {} for arm in arms}
    for run in sorted(runs, key=lambda run: (run[AXES[axis]], seeds.index(run["seed"]))):
        by_arm[run["arm"]].setdefault(float(run[AXES[axis]]), []).append(run["loss"])
    found: dict[str, Any] = {
        "axis": axis,
        "points": [
            {"arm": arm, "x": x, "losses": losses} for arm, by_x in by_arm.items() for x, losses in by_x.items()
        ],
        "laws": {},
        "equal_loss": {},
    }
    if any(loss is None for by_x in by_arm.values() for losses in by_x.values() for loss in losses):
        found["why_no_law"] = "a model's loss is no number"
        return found
    if min(map(len, by_arm.values())) < FEWEST_POINTS:
        found["why_no_law"] = f"a law needs at least {FEWEST_POINTS} sizes"
        return found
    laws: dict[str, Law] = {}
    for arm, by_x in by_arm.items():
        x = [size for size, losses in by_x.items() for _ in losses]
        laws[arm] = fit_law(x, [loss for losses in by_x.values() for loss in losses])
        found["laws"][arm] = asdict(laws[arm]) | {"intervals": _intervals(by_x)}
        if arm == arms[0]:
            continue
        if stuck := [one for one in (arms[0], arm) if not _falls(by_arm[one])]:
            found["why_no_equal_loss"] = f"the loss of {' and '.join(stuck)} does not fall with every step in {axis}"
        elif bent := [one for one in (arms[0], arm) if laws[one].ends_on_a_bound(by_arm[one].values())]:
            found["why_no_equal_loss"] = f"no power law describes the loss of {' and '.join(bent)} over {axis}"
        else:
            found["equal_loss"][arm] = asdict(equal_loss(by_arm[arms[0]], by_x))
    return found


def _intervals(losses: Mapping[float, Sequence[float]]) -> dict[str, Any]:
    """95 % of a law's numbers over the laws of single seeds; None for one seed."""
    laws = [asdict(law) for law in seed_laws(losses)]
    return {name: mean_interval([law[name] for law in laws]) for name in ("floor", "exponent")}


def _falls(losses: dict[float, list[float]]) -> bool:
    """Whether more always was better: a law through anything else says little of what was not trained."""
    means = [statistics.fmean(losses[x]) for x in sorted(losses)]
    return all(after < before for before, after in pairwise(means))
