"""Training stages of ``gpu_hour.py``: the pilot, pairs of models that are measured at once, and a continued model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_hour_measure import NO_TIME, measured
from gpu_hour_plan import Pace, TrainingPlan, plan_training
from gpu_hour_stage import SPARE, Kept, NoTime, Stage, alarm

from antiphase.config import CompareSettings, Preset, RunSettings, arm_run, load_preset
from antiphase.errors import InputError
from antiphase.execution.local import LocalPool
from antiphase.records import Record
from antiphase.studies.jobs import Job, run_jobs
from antiphase.studies.training_run import train_run
from antiphase.studies.upcycle.measure import upcycle, upcycle_preset
from antiphase.training.run_folder import read_metrics

PRESET = "reproduce-gpu"
PAIR = ("softmax", "differential")
V2 = "differential_v2"
ARMS = CompareSettings(arms={arm: {"model.attention_type": arm} for arm in (*PAIR, V2)})
COLD = 0.5
"""Share of the pilot's steps that are not timed, because they compile code."""
CORES = 16
CALLS = 2
"""Number of calls in which pairs are trained, unless --calls is given."""


def settings_of(stage: Stage, overrides: Sequence[str] = ()) -> Preset:
    """The preset with the text of ``prepare``.

    Raises:
        InputError: there is no such text.
    """
    texts = [stage.data / f"{part}.parquet" for part in ("train", "validation")]
    for path in texts:
        if not path.is_file():
            raise InputError(f"--prepared {stage.data} lacks {path.name}; make it with the stage prepare and bring it")
    own = [*stage.sizes.settings, f"training.device={stage.device}", f"data.cache={stage.data / 'tokens'}"]
    return load_preset(PRESET, [*own, *overrides], data=[str(texts[0])], validation=[str(texts[1])])


def run_of(preset: Preset, arm: str, seed: int, *, steps: int | None = None) -> RunSettings:
    """Settings of one run; its warm-up is shortened together with its steps."""
    run = arm_run(preset.run, ARMS, arm, seed=seed)
    if steps is None or steps == run.training.steps:
        return run
    share = steps / run.training.steps
    shorter = replace(
        run.training, steps=steps, warmup_steps=max(1, round(share * run.training.warmup_steps)),
        evaluate_every=max(1, round(share * run.training.evaluate_every)),
        checkpoint_every=max(1, round(share * run.training.checkpoint_every)),
    )  # fmt: skip
    return replace(run, training=shorter)


def train_side_by_side(stage: Stage, folder: Path, runs: dict[str, RunSettings], processes: int) -> dict[str, Any]:
    """Train runs by name, each in its own process, which resumes after a kill; return the values of their records.

    Raises:
        NoTime: time is over; checkpoints are written.
    """
    jobs = [Job(name, name, settings.training.seed, settings) for name, settings in runs.items()]

    def report(job: Job, step: int, values: dict[str, Any]) -> None:
        if stage.left <= 0:  # stopping the runs writes their checkpoints, as with Ctrl-C
            raise NoTime

    folder.mkdir(parents=True, exist_ok=True)
    pool = LocalPool(processes, max(1, min(CORES, 2 * processes) // processes))
    run_jobs(jobs, folder, pool=pool, report=report)
    return {name: Record.load(folder / name).values for name in runs}


def pilot(stage: Stage, calls: int, overrides: Sequence[str]) -> int:
    """Stage ``pilot``: tokens per second of each arm, seconds of all measurements, and the resulting plan."""
    kept = Kept(stage)
    preset = settings_of(stage, overrides)
    steps = stage.sizes.pilot_steps
    alone: dict[str, float] = {}
    for arm in (*PAIR, V2):
        found = kept(f"{arm} alone", partial(_alone, stage, preset, arm, steps))
        if found is None:
            return 1
        alone[arm] = found["tokens_per_second"]
        stage.say(f"{arm}: {alone[arm]:,.0f} tokens a second")
    together = kept("a pair side by side", lambda: _together(stage, preset, steps))
    if together is None:
        return 1
    measuring = kept("measuring a pair", lambda: _measuring(stage, together["folder"]))
    if measuring is None:
        return 1
    pace = Pace(
        alone=alone, together=together["tokens_per_second"], start=together["start"], measuring=measuring["seconds"]
    )
    run = preset.run
    found = plan_training(
        pace, minutes=PAIR_MINUTES, calls=calls, steps=run.training.steps,
        step_tokens=run.training.batch_size * run.data.sequence_length, fewest=stage.sizes.fewest_pairs, arms=PAIR,
    )  # fmt: skip
    kept.save("gpu-hour-pilot", {"pace": asdict(pace), "plan": asdict(found)}, {"run": run, "calls": calls})
    stage.say(f"together {pace.together:,.0f} tokens a second; measuring a pair takes {pace.measuring:.0f} s")
    stage.say(f"{found.pairs} pairs a call of {found.steps} steps, {found.pair_seconds:.0f} s each")
    for name, why in measuring["failed"].items():
        stage.say(f"FAILED {name}: {why}")
    return int(bool(measuring["failed"]))


TRAINING_MINUTES = 9.0
"""Minutes of a training call, for which the pilot plans."""
PAIR_MINUTES = TRAINING_MINUTES - SPARE / 60
"""Minutes of such a call that remain for its pairs."""


def _alone(stage: Stage, preset: Preset, arm: str, steps: int) -> dict[str, float]:
    """Tokens per second of the later steps, in this process, while nothing else runs."""
    run = run_of(preset, arm, 0)
    short = replace(run.training, steps=steps, log_every=1, evaluate_every=steps, checkpoint_every=steps)
    folder = stage.work / "pilot" / f"{arm}-alone"
    train_run(replace(run, training=short), folder, resume=(folder / "run.yaml").is_file())
    if stage.device == "cuda":
        torch.cuda.empty_cache()  # other processes need the memory next
    return {"tokens_per_second": _rate(folder)}


def _rate(folder: Path) -> float:
    """Tokens per second of a run's later steps."""
    lines = read_metrics(folder)
    first, last = lines[int(COLD * len(lines)) - 1], lines[-1]
    return (last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"])


def _together(stage: Stage, preset: Preset, steps: int) -> dict[str, Any]:
    """Both arms of a pair in processes side by side: their speed, and the time of a run besides its steps."""
    runs = {}
    for arm in PAIR:
        run = run_of(preset, arm, 0)
        short = replace(run.training, steps=steps, log_every=1, evaluate_every=steps, checkpoint_every=steps)
        runs[f"{arm}-seed0"] = replace(run, training=short)
    folder = stage.work / "pilot" / "pair"
    started = time.monotonic()
    train_side_by_side(stage, folder, runs, 2)
    seconds = time.monotonic() - started
    stepping = max(read_metrics(folder / name)[-1]["seconds"] for name in runs)
    return {
        "tokens_per_second": sum(_rate(folder / name) for name in runs),
        "start": max(0.0, seconds - stepping),
        "folder": str(folder),
    }


def _measuring(stage: Stage, folder: str) -> dict[str, Any]:
    """Every measurement of both models, as after a pair: total seconds, seconds of each, and failures."""
    started = time.monotonic()
    found = measured(stage, {f"{arm}-seed0": Path(folder) / f"{arm}-seed0" for arm in PAIR})
    failed = {name: result["why"] for name, result in found.items() if result["why"] is not None}
    each = {name: result["seconds"] for name, result in found.items()}
    return {"seconds": time.monotonic() - started, "each": each, "failed": failed}


def train(stage: Stage, overrides: Sequence[str]) -> int:
    """Stage ``train``: as many pairs as fit, each measured right after training; then V2 with the same seeds."""
    kept = Kept(stage)
    preset = settings_of(stage, overrides)
    planned = _planned(stage, preset)
    seeds = preset.compare.seeds[: stage.sizes.most_pairs]
    rounds = [("pair", PAIR, seed) for seed in seeds] + [("V2", (V2,), seed) for seed in seeds]
    for kind, arms, seed in rounds:
        name = f"{kind}, seed {seed}"
        runs = {f"{arm}-seed{seed}": run_of(preset, arm, seed, steps=planned.steps) for arm in arms}
        if _can_be_measured(stage, kept.pieces.get(name), runs):
            del kept.pieces[name]  # trained on this machine; only missing measurements take time
        elif name not in kept.pieces and stage.left < (seconds := _expected(kept, planned, arms)):
            stage.say(f"{max(0.0, stage.left):.0f} s are left, too little for {name}, which takes {seconds:.0f}")
            break
        try:
            found = kept(name, partial(_round, stage, runs, planned.processes))
        except NoTime:
            stage.say(f"the minutes were over during {name}; its checkpoints are in {stage.work}")
            break
        if found is None:
            break
        _show(stage, name, found)
    kept.save("gpu-hour-train", {"rounds": list(kept.pieces)}, {"run": preset.run, "plan": asdict(planned)})
    failed = {
        f"{name}, {part}": result["why"] for name, found in kept.pieces.items()
        for part, result in found["measured"].items() if result["why"] is not None
    }  # fmt: skip
    for name, why in failed.items():
        stage.say(f"FAILED {name}: {why}")
    return int(bool(failed) or not kept.pieces)


def _can_be_measured(stage: Stage, found: dict[str, Any] | None, runs: dict[str, RunSettings]) -> bool:
    """Whether the models of a round that ran out of time are still on this machine."""
    lacks = found is not None and any(result["why"] == NO_TIME for result in found["measured"].values())
    return lacks and all((stage.work / "models" / name / "record.json").is_file() for name in runs)


def _planned(stage: Stage, preset: Preset) -> TrainingPlan:
    """The pilot's plan; without one, all steps of the preset, both runs of a pair side by side, begun at once."""
    if (pilot := stage.record("pilot")).is_file():
        return TrainingPlan(**Record.load(pilot).values["plan"])
    stage.say(f"--records {stage.records} has no pilot.json: every run takes the preset's steps")
    return TrainingPlan(steps=preset.run.training.steps, processes=2, pair_seconds=0.0, pairs=0)


def _expected(kept: Kept, planned: TrainingPlan, arms: Sequence[str]) -> float:
    """Expected seconds of a round: the slowest of its kind so far, else as planned. A single run is most of a pair."""
    known = [found["seconds"] for found in kept.pieces.values() if len(found["runs"]) == len(arms)]
    return 1.05 * max(known) if known else planned.pair_seconds * (1.0 if len(arms) > 1 else 0.7)


def _round(stage: Stage, runs: dict[str, RunSettings], processes: int) -> dict[str, Any]:
    """Train runs and measure their models."""
    started = time.monotonic()
    folder = stage.work / "models"
    values = train_side_by_side(stage, folder, runs, min(processes, len(runs)))
    models = {name: folder / name for name in runs if values[name]["final"]["loss"] is not None}
    trained = time.monotonic() - started
    found = measured(stage, models)
    return {"runs": values, "measured": found, "training": trained, "seconds": time.monotonic() - started}


def _show(stage: Stage, name: str, found: dict[str, Any]) -> None:
    """Print the results of a round, one line per run."""
    for run, values in found["runs"].items():
        loss, accuracy = values["final"]["loss"], values["final"]["accuracy"]
        words = f"{name}: {run}, {values['tokens']:,} tokens, {values['tokens_per_second']:,.0f} a second"
        stage.say(f"{words}; diverged" if loss is None else f"{words}; loss {loss:.3f}, first question {accuracy:.2f}")


def continue_one(stage: Stage, overrides: Sequence[str]) -> int:
    """Stage ``continue``: continue a softmax model unchanged, as V2 and as its control, and measure all three.

    The model is that of seed 0; if this machine no longer has it, it is trained first.
    """
    kept = Kept(stage)
    preset = settings_of(stage, overrides)
    planned = _planned(stage, preset)
    name, folder = f"{PAIR[0]}-seed0", stage.work / "models"
    try:
        with alarm(stage.left):
            if "three forms" not in kept.pieces:
                train_side_by_side(stage, folder, {name: run_of(preset, PAIR[0], 0, steps=planned.steps)}, 1)
            found = kept("three forms", lambda: _continued(stage, folder / name))
            forms = kept("measurements", lambda: _measured_forms(stage))
    except NoTime:
        stage.say(f"the minutes were over; what is trained is in {stage.work}")
        return 1
    if found is None or forms is None:
        return 1
    kept.save("gpu-hour-continue", {"continued": found, "measured": forms}, {"run": preset.run})
    for row in found["runs"]:
        stage.say(f"{row['folder']}: loss {row['final']['loss']}, first question {row['final']['accuracy']}")
    failed = {part: result["why"] for part, result in forms.items() if result["why"] is not None}
    for part, why in failed.items():
        stage.say(f"FAILED {part}: {why}")
    return int(bool(failed))


def _continued(stage: Stage, model: Path) -> dict[str, Any]:
    """The record's values of ``antiphase upcycle`` with one seed."""
    output = stage.work / "continued"
    steps = stage.sizes.continued_steps
    own = [f"training.steps={steps}", f"training.warmup_steps={max(1, steps // 10)}",
           f"training.evaluate_every={max(1, steps // 3)}", f"training.checkpoint_every={max(1, steps // 2)}",
           "compare.seeds=[1]", "compare.processes=3"]  # fmt: skip
    if stage.is_rehearsal:  # of two needles, guessing finds half
        own.append("compare.threshold=0.9")
    preset = upcycle_preset(str(model), output, own)
    record = upcycle(str(model), output, preset, resume=(output / "compare.yaml").is_file(), say=stage.say)
    return record.values


def _measured_forms(stage: Stage) -> dict[str, Any]:
    output = stage.work / "continued"
    folders = sorted(path.parent for path in output.glob("*-seed1/config.json"))
    return measured(stage, {f"continued {folder.name}": folder for folder in folders})
