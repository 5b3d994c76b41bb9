"""Train the runs of ``programme.yaml`` that have no record yet, one after the other.

    python -m experiments.programme_runs --minutes 25 \
        --data ../shared/data/books/train --validation ../shared/data/books/validation-authors

A finished run is a line of ``records/programme/STUDY.jsonl``. A study's runs start when its claim is written
(``claim.json`` in the same folder). An interrupted run continues from its checkpoint in ``runs/programme``.

With ``--processes`` several run at a time, such as all of a study on a GPU; at the end of ``--minutes`` those are
stopped too, with a checkpoint.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import yaml
from rich.console import Console

from antiphase.base.errors import DivergedError, InputError, Interrupted
from antiphase.base.records import Record
from antiphase.lab.measures.needles import NeedlesSettings
from antiphase.lab.measures.needles.measure import evaluate as evaluate_needles
from antiphase.lab.measures.noise import NoiseSettings
from antiphase.lab.measures.noise.measure import evaluate as evaluate_noise
from antiphase.lab.scoring.likelihood import negative_log_likelihoods
from antiphase.lab.scoring.loading import load_model
from antiphase.lab.settings.presets import RunSettings, arm_run, load_preset
from antiphase.lab.studies.jobs import Job, run_jobs
from antiphase.lab.studies.runs import RunResult, run_of
from antiphase.lab.studies.training_run import train_run
from antiphase.lab.text.prepare import prepare
from antiphase.lab.text.workers import cores
from antiphase.lab.training.device import choose_device
from antiphase.lab.training.execution.local import LocalPool
from antiphase.lab.training.run_folder import check_run_of
from experiments import json_lines
from experiments.json_lines import Line

STUDIES = Path(__file__).with_name("programme.yaml")
RECORDS = Path("records/programme")
WORK = Path("runs/programme")
LEARNED = 0.5
"""First-query accuracy at which a run counts as having learned to retrieve."""
NOISE_CONTEXTS, LENGTH_CONTEXTS = 200, 100
"""Number of contexts whose irrelevant tokens are drawn again, and of those of each length."""
ENVIRONMENT = ("revision", "processor", "torch")


@dataclass(frozen=True)
class Run:
    """One training run of a study."""

    study: str
    arm: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.arm}-rate{self.rate:g}-seed{self.seed}"


def studies() -> dict[str, Any]:
    """The studies by name, in the order in which they run."""
    return yaml.safe_load(STUDIES.read_text("utf-8"))


def lines(name: str) -> list[Line]:
    """The finished runs of a study."""
    return json_lines.lines(RECORDS / f"{name}.jsonl")


def runs_of(name: str, known: Mapping[str, Any]) -> Iterator[Run]:
    """All arms of a seed, each at its rates, then the next seed.

    Raises:
        InputError: the study that chooses the rates has runs left, or an arm's best rate is at the edge of its grid.
    """
    study = known[name]
    further = study.get("further", {})
    rates = {
        arm: [float(rate) for rate in (*study.get("rates", []), *further.get(arm, []))] for arm in study["arms"]
    }  # fmt: skip
    if "rates_from" in study:
        source = study["rates_from"]
        if left := len(remaining(source, known)):
            raise InputError(f"{name} waits for {left} runs of {source}")
        rates = {arm: [best_rate(arm, source, known[source])] for arm in study["arms"]}
    for seed in study["seeds"]:
        yield from (Run(name, arm, rate, seed) for arm in study["arms"] for rate in rates[arm])


def remaining(name: str, known: Mapping[str, Any]) -> list[Run]:
    """The runs of a study that have no record."""
    done = {(line["arm"], line["rate"], line["seed"]) for line in lines(name)}
    return [run for run in runs_of(name, known) if (run.arm, run.rate, run.seed) not in done]


def best_rate(arm: str, name: str, study: Mapping[str, Any]) -> float:
    """The rate with which the arm's runs learned soonest on average over seeds or, where that is not asked or one of
    them never learned at any rate, had the lowest loss.

    Raises:
        InputError: it is the lowest or the highest that was tried, so there may be a better one.
    """
    scores: dict[float, list[tuple[float, float]]] = {}
    for line in lines(name):
        if line["arm"] == arm:
            steps = steps_to(line, LEARNED) if study["chosen_by"] == "steps" else 0
            loss = math.inf if line["loss"] is None else line["loss"]  # it diverged
            scores.setdefault(line["rate"], []).append((math.inf if steps is None else steps, loss))
    means = {rate: tuple(fmean(column) for column in zip(*values, strict=True)) for rate, values in scores.items()}
    best = min(means, key=means.__getitem__)
    if best in (min(means), max(means)):
        raise InputError(f"{arm}: the best rate of {name}, {best:g}, is at the edge of its grid; extend the grid")
    return best


def steps_to(line: Line, accuracy: float) -> int | None:
    """The first evaluated step with more than this accuracy; None if there is none."""
    return next((step for step, reached, _ in line["curve"] if reached > accuracy), None)


def settings_of(
    run: Run, study: Mapping[str, Any], data: Sequence[str], validation: Sequence[str], overrides: Sequence[str] = ()
) -> RunSettings:
    """All settings of a run; with synthetic data there are no paths."""
    changes = [f"{key}={json.dumps(value)}" for key, value in study.get("settings", {}).items()]
    changes += [f"compare.arms={json.dumps([run.arm])}", f"training.learning_rate={run.rate!r}"]
    if study.get("held_out") == "cut":
        changes.append("data.validation=[]")
        validation = ()
    changes += overrides
    if load_preset(study["base"], changes).run.data.source == "synthetic":
        data = validation = ()
    preset = load_preset(study["base"], changes, data=data, validation=validation)
    settings = arm_run(preset.run, preset.compare, run.arm, seed=run.seed)
    cache = str(WORK / "tokens") if data else None
    return replace(settings, data=replace(settings.data, cache=cache))


def execute(run: Run, settings: RunSettings, study: Mapping[str, Any] | None = None) -> Line:
    """Train the run, or resume it; the values of its line.

    Args:
        study: what ``programme.yaml`` says of its study; None means that nothing else is asked of the run.
    """
    study = study or {}
    place = WORK / run.study / run.name
    record = trained_until(run, settings, place, study) if "until" in study else trained(settings, place)
    found = run_of(record)
    chooses = "chosen_by" in study  # the loss of every document is not needed
    line = {
        "arm": run.arm, "rate": run.rate, "seed": run.seed, "parameters": found.parameters, "tokens": found.tokens,
        "seconds": round(found.seconds or 0.0, 1), "loss": found.final.loss, "accuracy": found.final.accuracy,
        "curve": curve(found), "stages": record.values.get("stages"), "lambdas": found.lambdas,
        "by_document": None if chooses else by_document(place, settings, record),
        **{name: record.environment.get(name) for name in ENVIRONMENT}, "created": record.created,
    }  # fmt: skip
    if "until" in study:
        line["noise"] = noise(place.with_name(record.values["folder"]))
    if "lengths_read" in study:
        line["l50"] = half_answered(place, study["lengths_read"])
    return line


def trained(settings: RunSettings, place: Path) -> Record:
    """The record of a run in this folder, which is trained, or resumed, if it has none."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if not (place / "record.json").is_file():
        with suppress(DivergedError):  # its record says so
            train_run(settings, place, resume=place.exists())
    check_run_of(place, settings)  # one with --set may have been trained here
    return Record.load(place)


def trained_until(run: Run, settings: RunSettings, place: Path, study: Mapping[str, Any]) -> Record:
    """The record of the run that ends at its first evaluation with more than ``until``, or at the end of its steps.

    A run of fewer steps repeats the beginning of a longer one, so the search starts at the step of that run of the
    study ``like``.
    """
    longest = settings.training.steps
    (like,) = [line for line in lines(study["like"]) if (line["arm"], line["rate"], line["seed"]) ==
               (run.arm, run.rate, run.seed)]  # fmt: skip
    steps = steps_to(like, study["until"]) or longest
    while True:
        shorter = replace(settings, training=replace(settings.training, steps=steps))
        record = trained(shorter, place.with_name(f"{place.name}-steps{steps}"))
        passed = steps_to({"curve": curve(run_of(record))}, study["until"])
        if steps == (passed or longest):
            return record
        steps = passed or min(steps + settings.training.evaluate_every, longest)


def noise(model: Path) -> dict[str, Any]:
    """What ``evaluate noise`` finds in a trained model, at the length in training."""
    settings = NoiseSettings(name=str(model), times=(1,), samples=NOISE_CONTEXTS, device="cpu")
    output = model.with_name(f"{model.name}-noise")
    values = evaluate_noise(settings, output, resume=output.exists()).values
    return {kind: [row for row in values[kind] if row["trained"]] for kind in ("resampled", "changed")}


def half_answered(model: Path, lengths: Sequence[int]) -> dict[str, Any]:
    """L50 of a trained model: what ``evaluate needles`` finds over these lengths, at random depths."""
    if Record.load(model).values.get("diverged"):
        return unanswered(lengths)
    output = model.with_name(f"{model.name}-lengths")
    settings = NeedlesSettings(
        name=str(model), lengths=lengths, queries=(1,), depths=(), samples=LENGTH_CONTEXTS, device="cpu"
    )
    (row,) = [row for row in evaluate_needles(settings, output, resume=output.exists()).values["crossings"]
              if row["trained"]]  # fmt: skip
    return {name: row[name] for name in ("sizes", "value", "beyond", "interval")}


def unanswered(lengths: Sequence[int]) -> dict[str, Any]:
    """L50 of a run that diverged: without one, its block would be left out for all arms."""
    return {"sizes": list(lengths), "value": None, "beyond": "below", "interval": [None, None]}


def execute_together(runs: Mapping[Run, RunSettings], processes: int, ends: float) -> None:
    """Train runs of one study, so many at a time, each in a process of its own that resumes.

    Raises:
        Interrupted: ``ends``, in the seconds of ``time.monotonic``, has come; the runs have written checkpoints.
    """
    jobs = [Job(run.name, run.arm, run.seed, settings) for run, settings in runs.items()]

    def report(job: Job, step: int, values: Mapping[str, Any]) -> None:
        if time.monotonic() > ends and step < job.settings.training.steps:
            raise Interrupted("the minutes are over")

    place = WORK / next(iter(runs)).study
    place.mkdir(parents=True, exist_ok=True)
    run_jobs(jobs, place, pool=LocalPool(processes, max(1, cores() // processes)), report=report)


def curve(found: RunResult) -> list[list[float | None]]:
    """Step, first-query accuracy and held-out loss of every evaluation."""
    return [
        [point.step, *(None if value is None else round(value, 5) for value in (point.accuracy, point.loss))]
        for point in found.curve
    ]


def by_document(place: Path, settings: RunSettings, record: Record) -> dict[str, float] | None:
    """Held-out loss of each document, nats per token; None for symbols, or if the run diverged."""
    if record.values.get("diverged"):
        return None
    losses = block_losses(place, settings, WORK / "tokens")
    return None if losses is None else {document: round(fmean(blocks), 5) for document, blocks in losses.items()}


def block_losses(folder: Path, settings: RunSettings, tokens: Path = WORK / "tokens") -> dict[str, list[float]] | None:
    """Held-out loss of each block of text in nats per token, by document, so that runs can be compared block by block.

    None for runs on the synthetic task.
    """
    if settings.data.source == "synthetic":
        return None
    data = prepare(settings.data, tokens)
    text = data.validation_text
    assert text is not None
    batch = data.validation(settings.evaluation.validation_sequences)
    model = load_model(str(folder), device=str(choose_device(settings.training.device))).model
    losses = negative_log_likelihoods(model, batch.input_ids, batch.labels)
    by_block = losses.unflatten(0, (len(batch.input_ids), -1)).double().mean(1).tolist()
    ends = np.flatnonzero(text.tokens == data.tokenizer.eos_token_id)
    found: dict[str, list[float]] = {}
    for index, loss in enumerate(by_block):
        start = index * len(text) // len(by_block) * text.sequence_length
        found.setdefault(str(int(np.searchsorted(ends, start))), []).append(round(loss, 4))
    return found


def main() -> None:
    """Train the remaining runs, until ``--minutes`` are over."""
    global RECORDS
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", action="append", default=[], help="text to train on; repeatable")
    parser.add_argument("--validation", action="append", default=[], help="text that is held out; repeatable")
    parser.add_argument("--studies", help="comma-separated names; all in their order if left out")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after so many")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--records", type=Path, default=RECORDS, help="folder of the studies' lines")
    parser.add_argument("--revision", help="commit of the code, for a machine that has no history of it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting, to try a study")
    given = parser.parse_args()
    if given.set and given.records == RECORDS:
        parser.error("--set: these are no runs of the study; name another folder with --records")
    console, known = Console(highlight=False), studies()
    names = given.studies.split(",") if given.studies else list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--studies: unknown study {unknown[0]!r}; known: {', '.join(known)}")
    ends = time.monotonic() + 60 * given.minutes
    for name in names:
        claim = RECORDS / name.partition("/")[0] / "claim.json"
        if not claim.is_file():
            parser.error(f"{name}: write its claim before its runs, into {claim}")
    RECORDS = given.records
    for name in names:
        try:
            left = remaining(name, known)
            chosen_by = known[known[name].get("rates_from", name)]["chosen_by"]
            console.print(f"{name}: {len(left)} runs have no record yet")
            for some in [left] if left and given.processes > 1 else [[run] for run in left]:
                if time.monotonic() > ends:
                    return
                settings = {run: settings_of(run, known[name], given.data, given.validation, given.set) for run in some}
                if given.processes > 1 and "until" not in known[name]:  # whose steps are not known before
                    execute_together(settings, given.processes, ends)
                for run in some:
                    line = execute(run, settings[run], known[name])
                    line["revision"] = given.revision or line["revision"]
                    json_lines.append(RECORDS / f"{name}.jsonl", line)
                    learned = f", 50 % after {steps_to(line, LEARNED)} steps" if chosen_by == "steps" else ""
                    console.print(f"{name}/{run.name}: {line['seconds']} s{learned}")
        except Interrupted:
            console.print("stopped; the same command continues from the checkpoint")
            raise SystemExit(130) from None
        except InputError as error:
            console.print(str(error))


if __name__ == "__main__":
    main()
