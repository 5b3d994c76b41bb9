"""Train the runs of ``evidence.yaml`` that have no record yet, one after the other.

    python -m experiments.evidence --data ../shared/data/books/train --validation ../shared/data/books/validation

Every finished run is a line of ``records/evidence/STUDY.jsonl``, from which ``evidence_tables.py`` makes tables
and ``evidence_figures.py`` figures. An interrupted run continues from its checkpoint in ``runs/evidence``. The
text comes from Standard Ebooks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console

from antiphase.base.errors import InputError, Interrupted
from antiphase.base.folders.contents import check_content
from antiphase.base.records import Record, finite
from antiphase.base.typed import build
from antiphase.lab.scoring.likelihood import negative_log_likelihoods
from antiphase.lab.scoring.loading import load_model
from antiphase.lab.settings.presets import RunSettings, load_preset
from antiphase.lab.studies.jobs import Job, run_jobs
from antiphase.lab.studies.runs import run_of
from antiphase.lab.studies.tune.measure import gradient_spikes
from antiphase.lab.text.prepare import prepare
from antiphase.lab.training.device import choose_device
from antiphase.lab.training.execution.local import LocalPool
from antiphase.lab.training.run_folder import SETTINGS, check_run, read_metrics
from experiments import json_lines
from experiments.json_lines import Line, append

STUDIES = Path(__file__).with_suffix(".yaml")
RECORDS = Path("records/evidence")
WORK = Path("runs/evidence")
UNTRAINED = ("evaluate_every", "log_every")
"""Settings of training that change no weight. Older runs logged every tenth step."""


@dataclass(frozen=True)
class Run:
    """One training run of a study."""

    study: str
    levels: dict[str, str]
    """The run's level of each factor."""
    changes: dict[str, Any]
    """Settings that differ from the study's base."""
    seed: int
    base: str

    @property
    def name(self) -> str:
        """Name of its folder and record."""
        words = [f"{factor} {level}".replace(" ", "_") for factor, level in self.levels.items()]
        return "-".join([*words, f"seed{self.seed}"]).replace("/", "_")

    @property
    def record(self) -> Line | None:
        """Its line, if it is finished."""
        return next((line for line in lines(RECORDS / f"{self.study}.jsonl") if line["run"] == self.name), None)

    def settings(self, data: list[str], validation: list[str]) -> RunSettings:
        """All settings of the run; with synthetic data there are no paths."""
        changes = [f"{key}={json.dumps(value)}" for key, value in self.changes.items()]
        synthetic = load_preset(self.base, changes).run.data.source == "synthetic"
        own = "data.validation" in self.changes
        preset = load_preset(
            self.base, changes, data=() if synthetic else data, validation=() if synthetic or own else validation
        )
        run = preset.run
        return replace(
            run,
            data=replace(run.data, cache=None if synthetic else str(WORK / "tokens")),
            training=replace(run.training, seed=self.seed),
        )


def studies(path: Path = STUDIES) -> dict[str, Any]:
    """The studies by name, in the order in which they run."""
    return yaml.safe_load(path.read_text("utf-8"))


def runs_of(name: str, study: Mapping[str, Any]) -> Iterator[Run]:
    """Every combination of levels with every seed: all arms of a seed, then the next seed.

    A study with ``chosen_from`` adds to each arm what served it best in those studies, one with ``common_from`` adds to
    all runs what served their arms best on average; neither has runs before those studies are finished.
    """
    factors = study["factors"]
    if missing(sources_of(study)):
        return
    arms = factors["arm"] if "chosen_from" in study else ()
    own = {arm: best_of(study["chosen_from"], [arm]).changes for arm in arms}
    common = best_of(study["common_from"]).changes if "common_from" in study else {}
    for seed in study["seeds"]:
        for levels in itertools.product(*factors.values()):
            changes: dict[str, Any] = dict(study.get("settings", {}))
            for factor, level in zip(factors.values(), levels, strict=True):
                changes |= factor[level]
            named = dict(zip(factors, levels, strict=True))
            changes |= common | own.get(named.get("arm", ""), {})
            yield Run(name, named, changes, seed, study["base"])


def count(study: Mapping[str, Any]) -> int:
    """The number of a study's runs."""
    return len(study["seeds"]) * math.prod(map(len, study["factors"].values()))


def sources_of(study: Mapping[str, Any]) -> list[str]:
    """The studies that choose settings for this one."""
    return [*study.get("chosen_from", ()), *study.get("common_from", ())]


def missing(sources: Sequence[str]) -> int:
    """How many runs of these studies have no record yet."""
    known = studies()
    return sum(run.record is None for name in sources for run in runs_of(name, known[name]))


@cache
def _read(path: Path, changed: int) -> list[Line]:
    return json_lines.lines(path)


def lines(path: Path) -> list[Line]:
    """The lines of a study, read once as long as the file does not change."""
    return _read(path, path.stat().st_mtime_ns if path.is_file() else 0)


class NoChoiceError(ValueError):
    """Finished studies do not say which setting is best."""


@dataclass(frozen=True)
class Choice:
    """The start and the rate with the lowest held-out loss of an arm, or mean loss of several."""

    levels: dict[str, str]
    changes: dict[str, Any]
    """The settings of these levels."""


def best_of(sources: Sequence[str], arms: Sequence[str] | None = None) -> Choice:
    """What served these arms best, or all, in studies with the factors arm, start and rate.

    Settings with which a run diverged are never chosen.

    Raises:
        NoChoiceError: a run of every setting diverged, or the best rate is the lowest or the highest that was tried, so
            there may be a better one.
    """
    known = studies()
    losses: dict[tuple[str, str], list[float]] = {}
    for name in sources:
        for run in runs_of(name, known[name]):
            assert run.record is not None
            loss = run.record["values"]["final"]["loss"]
            if arms is None or run.levels["arm"] in arms:
                found = losses.setdefault((run.levels["start"], run.levels["rate"]), [])
                found.append(math.inf if loss is None else loss)
    means = {setting: statistics.fmean(values) for setting, values in losses.items()}
    start, rate = min(means, key=means.__getitem__)
    who = "all arms" if arms is None else ", ".join(arms)
    if math.isinf(means[start, rate]):
        raise NoChoiceError(f"{who}: in {', '.join(sources)} a run diverged with every start and rate")
    tried = sorted(float(other) for begun, other in means if begun == start)
    if float(rate) in (tried[0], tried[-1]):
        raise NoChoiceError(f"{who}: the best rate, {rate} from the start {start}, is at the grid's edge; extend it")
    (rates, starts) = (
        {level: changes for name in sources for level, changes in known[name]["factors"][factor].items()}
        for factor in ("rate", "start")
    )
    return Choice({"start": start, "rate": rate}, starts[start] | rates[rate])


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


def reusable(settings: RunSettings) -> dict[str, Any] | None:
    """The record of a run of another study with the same settings and text."""
    wanted = _identity(finite(asdict(settings)))
    content = prepare(settings.data, WORK / "tokens").content
    for kept in (line for path in sorted(RECORDS.glob("*.jsonl")) for line in lines(path)):
        known = build(RunSettings, kept["settings"], strict=False)  # settings that are newer have their defaults
        if _identity(finite(asdict(known))) == wanted and kept.get("content") == content:
            return kept
    return None


def _identity(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that determine a run's record."""
    data = {name: value for name, value in settings["data"].items() if name not in ("cache", "workers")}
    training = {name: value for name, value in settings["training"].items() if name not in UNTRAINED}
    evaluation = {name: settings["evaluation"][name] for name in ("validation_sequences", "curve_samples")}
    return {"model": settings["model"], "data": data, "training": training, "evaluation": evaluation}


def execute(run: Run, settings: RunSettings) -> None:
    """Train the run, or resume it, and write its line."""
    kept = reusable(settings) or _trained(run, settings)
    own = {"run": run.name, "study": run.study, "levels": run.levels, "changes": run.changes}
    append(RECORDS / f"{run.study}.jsonl", {**kept, **own})


def _trained(run: Run, settings: RunSettings) -> dict[str, Any]:
    """The values of the run's record.

    Raises:
        InputError: the run's folder holds a run with other settings, or one that read other text.
    """
    folder = WORK / run.study
    place = folder / run.name
    check_run(place, settings, resume=True)
    if (place / SETTINGS).is_file():
        check_content(place, prepare(settings.data, WORK / "tokens").content)
    job = Job(run.name, run.study, run.seed, settings)
    run_jobs([job], folder, pool=LocalPool(1, 1), report=lambda job, step, values: None)
    record = Record.load(place)
    lines = read_metrics(place)
    norms = [line["gradient_norm"] for line in lines]
    return {
        "seed": run.seed,
        "content": prepare(settings.data, WORK / "tokens").content,
        "values": {
            **{name: record.values[name] for name in ("parameters", "tokens", "seconds", "curve", "final", "lambdas")},
            "diverged": record.values.get("diverged"),
            "block_losses": None if record.values.get("diverged") else block_losses(place, settings),
            "passes": run_of(record).first_passing(0.5),
            "spikes": gradient_spikes(norms),
            "largest_gradient_norm": max((norm for norm in norms if norm is not None), default=None),
        },
        "settings": finite(asdict(settings)),
        "environment": record.environment,
        "created": record.created,
    }


def main() -> None:
    """Train the remaining runs, until ``--minutes`` are over."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", action="append", default=[], help="text to train on; repeatable")
    parser.add_argument("--validation", action="append", default=[], help="text that is held out; repeatable")
    parser.add_argument("--studies", help="comma-separated names; all in their order if left out")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so many")
    given = parser.parse_args()
    console = Console()
    known = studies()
    names = given.studies.split(",") if given.studies else list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--studies: unknown study {unknown[0]!r}; known: {', '.join(known)}")
    left = []
    for name in names:
        try:
            left += [run for run in runs_of(name, known[name]) if run.record is None]
        except NoChoiceError as error:
            console.print(f"{name} cannot begin. {error}")
        if waits := missing(sources := sources_of(known[name])):
            console.print(f"{name} waits for {waits} runs of {', '.join(sources)}")
    console.print(f"{len(left)} runs have no record yet")
    started = time.monotonic()
    for place, run in enumerate(left, start=1):
        if time.monotonic() - started > 60 * given.minutes:
            break
        began = time.monotonic()
        try:
            execute(run, run.settings(given.data, given.validation))
        except Interrupted:
            console.print("stopped; the same command continues from the checkpoint")
            raise SystemExit(130) from None
        except InputError as error:
            raise SystemExit(f"{run.study}/{run.name}: {error}") from None
        console.print(
            f"{place} of {len(left)}: {run.study}/{run.name}, {time.monotonic() - began:.0f} s", highlight=False
        )


if __name__ == "__main__":
    main()
