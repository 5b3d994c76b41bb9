"""The experiments of the calibration paper (2406.15765, section 5) on one model: ``antiphase calibrate study``.

Every evaluation is a cell: a setting and each sample's scores, written as soon as it is known, so that a study goes on
after a kill and no setting is evaluated twice. Heads are chosen on one part of the samples; every gain is measured on
the other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from scipy import stats

from antiphase.calibration.apply import calibrated
from antiphase.calibration.changes import Scores, changes_of, gain_interval, mean_of, rounding_of, sign_flips
from antiphase.calibration.plan import CalibrationPlan
from antiphase.calibration.search import NO_SINKS, SLOPE_COST, screened_heads, slopes_of, split_samples
from antiphase.calibration.variants import Rule, varied
from antiphase.errors import InputError, nearest
from antiphase.folders.held import undone_if_refused
from antiphase.folders.journal import append_line, read_lines
from antiphase.folders.work import work_in
from antiphase.randomness import keyed_generator
from antiphase.records import Record, finite
from antiphase.scoring.loading import load_model, refused_by_model
from antiphase.studies.calibration import (
    SCORES,
    TaskRequest,
    begin,
    by_mode,
    check_judges,
    check_layers,
    check_model,
    load_tasks,
    standing,
)
from antiphase.tasks.samples import Task
from antiphase.tasks.task_scores import both_scores, log_probabilities
from antiphase.training.device import choose_device

CELLS = "cells.jsonl"
Part = Literal["heads", "screen", "temperature", "inverse", "redistribution", "alpha", "beta", "samples", "subsets",
               "controls", "shots"]  # fmt: skip
PARTS = get_args(Part)
ALPHAS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
BETAS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
TEMPERATURES = {"1.1": 1.1, "1/1.1": 1 / 1.1}
CONTROLS = 5
"""Draws of random heads, and of random tokens."""
SHOTS = (0, 1, 4)
FALSE_DISCOVERIES = 0.05


@dataclass(frozen=True, kw_only=True)
class StudyRequest(TaskRequest):
    """What ``antiphase calibrate study`` was asked for."""

    name: str
    """Local folder or Hub name of a model."""
    parts: Sequence[str] = PARTS
    alpha: float = 5.0
    beta: float = 0.4
    mode: str = "prompt"
    layers: Sequence[int] | None = None
    score: str = "metric"
    held_out: float = 0.5

    def check(self) -> None:
        """Raise an InputError for a value out of range; it names the flag."""
        super().check()
        for part in self.parts:
            if part not in PARTS:
                raise InputError(f"--only must name some of {', '.join(PARTS)}{nearest(part, PARTS)}")
        if self.score not in SCORES:
            raise InputError(f"--score must be one of {', '.join(SCORES)}{nearest(self.score, SCORES)}")
        if not 0 < self.held_out < 1:
            raise InputError(f"--held-out must lie between 0 and 1, got {self.held_out}")
        if self.mode == "running":
            raise InputError("--mode must be paper or prompt: the paper's other rules have no running form")
        CalibrationPlan({}, self.alpha, self.beta, self.mode)


@dataclass(frozen=True)
class Cell:
    """Scores of every sample in one setting."""

    metric: Scores
    log_probability: Scores

    def score(self, kind: str) -> Scores:
        """The score that chooses heads and is told."""
        if kind == "metric":
            return self.metric
        return {name: values.exp() for name, values in self.log_probability.items()}


class Cells:
    """Evaluates settings, and remembers them in a file."""

    def __init__(self, path: Path, mode: str, say: Callable[[int], None]) -> None:
        self.path, self.scores, self.say = path, by_mode(both_scores, mode), say
        self.known = {line["key"]: line for line in read_lines(path)}

    def evaluate(
        self, key: str, model: Any, tasks: Mapping[str, Task], setting: Callable[[], AbstractContextManager[None]]
    ) -> Cell:
        """The scores of all samples in a setting.

        Raises:
            ValueError: a score is not a number; it names the sample.
        """
        if key not in self.known:
            line: dict[str, Any] = {"key": key, "metric": {}, "log_probability": {}}
            for name, task in tasks.items():
                with torch.no_grad(), setting():
                    metric, log_probability = self.scores(model, task.samples)
                bad = (~(metric.isfinite() & log_probability.isfinite())).nonzero()[:, 0]
                if len(bad):
                    raise ValueError(f"the score of sample {int(bad[0])} of {name} (from 0) is not a number in {key}")
                line["metric"][name] = metric.tolist()
                line["log_probability"][name] = log_probability.tolist()
            append_line(self.path, line)
            self.known[key] = line
        self.say(len(self.known))
        line = self.known[key]
        return Cell(*({name: torch.tensor(values, dtype=torch.float64) for name, values in line[kind].items()}
                      for kind in ("metric", "log_probability")))  # fmt: skip


def study(
    request: StudyRequest,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[int, int], None] = lambda done, count: None,
) -> Record:
    """Run the parts that were asked for. Writes ``record.json`` in ``output``.

    Raises:
        InputError: a model, task or value that cannot be used, a task at chance, a folder with other contents.
    """
    request.check()
    started = time.perf_counter()
    with work_in(output, request, resume=resume) as work:
        with undone_if_refused(output), refused_by_model(request.name):
            loaded = load_model(request.name, device=str(choose_device(request.device)))
            check_layers(request.layers, loaded.model)
            tasks = load_tasks(request, loaded)
            check_model(loaded.model, tasks, request.mode)
            begin(work, loaded.model, tasks)
            begun = _Study(request, loaded, tasks, _heads(request, loaded.model), output, say, report)
            standings = begun.begin()
        with refused_by_model(request.name):  # what has been evaluated by then stays
            found = {"tasks": standings, **begun.run()}
        record = Record(
            kind="calibrate-study",
            values=finite({"model": request.name, **found}),
            config=finite(asdict(request)),
            seeds=[request.seed],
            seconds=time.perf_counter() - started,
        )
        record.save(output)
    return record


def _heads(request: StudyRequest, model: Any) -> list[tuple[int, int]]:
    text = model.config.get_text_config()
    layers = range(text.num_hidden_layers) if request.layers is None else sorted(set(request.layers))
    return [(layer, head) for layer in layers for head in range(text.num_attention_heads)]


def by_layer(heads: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
    """(layer, head) pairs as layer to heads."""
    found: dict[int, list[int]] = {}
    for layer, head in heads:
        found.setdefault(layer, []).append(head)
    return found


def part_of(scores: Scores, numbers: Mapping[str, Sequence[int]]) -> Scores:
    """The scores of some samples, by their numbers in each task."""
    return {name: values[torch.tensor(list(numbers[name]))] for name, values in scores.items()}


class _Study:
    def __init__(
        self,
        request: StudyRequest,
        loaded: Any,
        tasks: dict[str, Task],
        heads: list[tuple[int, int]],
        output: Path,
        say: Callable[[str], None],
        report: Callable[[int, int], None],
    ) -> None:
        self.request, self.loaded, self.model, self.tasks, self.heads = request, loaded, loaded.model, tasks, heads
        self.say, self.kind = say, request.score
        count = len(heads) + 2 + 2 * len(ALPHAS) + 3 * CONTROLS
        self.cells = Cells(output / CELLS, request.mode, lambda done: report(done, max(count, done)))
        split = split_samples(
            {name: task.samples for name, task in tasks.items()}, held_out=request.held_out, seed=request.seed
        )
        self.chosen, self.held_out = split.search_numbers, split.held_out_numbers
        for name, judges in self.held_out.items():
            check_judges(name, len(judges))
        self.spans = {
            sample.prompt: {name: (start, stop) for name, start, stop in sample.spans}
            for task in tasks.values()
            for sample in task.samples
        }

    # ------------------------------------------------------------------------------------------ settings

    def plan(self, heads: Sequence[tuple[int, int]], **changes: Any) -> CalibrationPlan:
        rule = {"alpha": self.request.alpha, "beta": self.request.beta, "mode": self.request.mode, **changes}
        return CalibrationPlan(by_layer(heads), **rule)

    def cell(self, name: str, heads: Sequence[tuple[int, int]], *, rule: Rule | None = None, **changes: Any) -> Cell:
        """Scores with these heads changed; the key says all that matters."""
        if not heads:
            return self.plain
        words = {name: value for name, value in changes.items() if name in ("temperature", "seed")}
        plan = self.plan(heads, **{k: v for k, v in changes.items() if k not in words})
        where = {str(layer): maps for layer, maps in plan.heads.items()}
        key = json.dumps([rule or "calibrated", where, plan.alpha, plan.beta, plan.mode, words])

        def setting() -> AbstractContextManager[None]:
            if rule is None:
                return calibrated(self.model, plan)
            return varied(self.model, plan, rule, spans=self.spans, **words)

        if key not in self.cells.known:
            self.say(name)
        return self.cells.evaluate(key, self.model, self.tasks, setting)

    def changes(self, cell: Cell, numbers: Mapping[str, Sequence[int]]) -> Scores:
        """What a setting changes in the scores of some samples, rounding apart."""
        after, before = (part_of(c.score(self.kind), numbers) for c in (cell, self.plain))
        return changes_of(after, before, rounding=self.rounding)

    def row(self, setting: str, heads: Sequence[tuple[int, int]], cell: Cell) -> dict[str, Any]:
        """The gain on the samples that chose no head."""
        changes = self.changes(cell, self.held_out)
        smooth = [mean_of(part_of(c.log_probability, self.held_out)) for c in (cell, self.plain)]
        return {
            "setting": setting,
            "heads": len(heads),
            "score": mean_of(part_of(cell.score(self.kind), self.held_out)),
            "gain": mean_of(changes),
            "gain_interval": list(gain_interval(changes, seed=self.request.seed)),
            "log_probability_gain": smooth[0] - smooth[1],
        }

    # ------------------------------------------------------------------------------------------ parts

    def begin(self) -> list[dict[str, Any]]:
        """The model as it is.

        Raises:
            InputError: it is no better than chance.
        """
        self.say("without calibration")
        self.plain = self.cells.evaluate("plain", self.model, self.tasks, nullcontext)
        rounded = self.cell("every head, no sink", self.heads, alpha=NO_SINKS)
        self.rounding = rounding_of(self.plain.score(self.kind), rounded.score(self.kind))
        standings = [standing(task, self.plain.metric[name]) for name, task in self.tasks.items()]
        at_chance = [row for row in standings if not row["above_chance"]]
        if at_chance:
            row = at_chance[0]
            raise InputError(
                f"--task: on {row['task']} the model ({100 * row['score']:.1f} %) is no better than chance "
                f"({100 * row['chance']:.1f} %), so no effect could be seen; remove it, or give more --shots"
            )
        return standings

    def run(self) -> dict[str, Any]:
        """Every part that was asked for."""
        alone = {head: self.cell(f"head {head[0]}.{head[1]} alone", [head]) for head in self.heads}
        on_search = {head: mean_of(self.changes(cell, self.chosen)) for head, cell in alone.items()}
        kept = [head for head in self.heads if on_search[head] > 0]
        ranked = sorted(kept, key=lambda head: -on_search[head])
        found: dict[str, Any] = {
            "score": self.kind,
            "rounding": self.rounding,
            "held_out_before": mean_of(part_of(self.plain.score(self.kind), self.held_out)),
            "heads": self.heads_part(alone),
            "kept": by_layer(kept),
            "rows": {"kept heads": [self.row("kept heads", kept, self.cell("the kept heads", kept))]},
        }
        asked = set(self.request.parts)
        rows = found["rows"]
        if "screen" in asked:
            found["screen"], rows["screen"] = self.screen_part(alone, on_search)
        if "temperature" in asked:
            rows["temperature"] = [
                self.row(f"× {words}, all heads", self.heads,
                         self.cell(f"temperature {words}", self.heads, rule="temperature", temperature=factor))
                for words, factor in TEMPERATURES.items()
            ]  # fmt: skip
        if "inverse" in asked:
            rows["inverse"] = [
                self.row(f"inverse, {words}", heads, self.cell(f"inverse, {words}", heads, rule="inverse"))
                for words, heads in (("kept heads", kept), ("all heads", self.heads))
            ]
            rows["inverse"].append(self.row("calibrated, all heads", self.heads, self.cell("all heads", self.heads)))
        if "redistribution" in asked:
            rows["redistribution"] = [
                self.row(rule, kept, self.cell(f"freed weight: {rule}", kept, rule=rule)) for rule in self.rules()
            ]
        if "alpha" in asked:
            rows["alpha"] = [
                {**self.row(f"α = {alpha:g}", kept, self.cell(f"alpha {alpha:g}", kept, alpha=alpha)), "value": alpha}
                for alpha in ALPHAS
            ]
        if "beta" in asked:
            rows["beta"] = [
                {**self.row(f"β = {beta:g}", kept, self.cell(f"beta {beta:g}", kept, beta=beta)), "value": beta}
                for beta in BETAS
            ]
        if "samples" in asked:
            rows["samples"] = self.samples_part(alone)
        if "subsets" in asked:
            counts = sorted({*(2**i for i in range(12) if 2**i < len(ranked)), *([len(ranked)] if ranked else [])})
            rows["subsets"] = [
                {**self.row(f"best {count}", ranked[:count], self.cell(f"the best {count} heads", ranked[:count])),
                 "value": count}
                for count in counts
            ]  # fmt: skip
        if "controls" in asked:
            rows["controls"] = self.controls_part(kept)
        if "shots" in asked:
            rows["shots"] = self.shots_part(kept)
        if "heads" not in asked:
            del found["heads"]
        return found

    def rules(self) -> list[Rule]:
        """Where the freed weight may go, as far as the prompts have such parts."""
        filled = {name for parts in self.spans.values() for name, (start, stop) in parts.items() if stop > start}
        parts: tuple[Rule, ...] = ("question", "demonstrations", "choices")
        return ["proportional", "uniform", *(part for part in parts if part in filled)]

    def heads_part(self, alone: Mapping[tuple[int, int], Cell]) -> dict[str, Any]:
        """Each head alone, on all samples, beside what flipping the signs of the samples' changes would give."""
        whole = {name: range(len(task.samples)) for name, task in self.tasks.items()}
        generator = keyed_generator(self.request.seed, "sign flips")
        rows: list[dict[str, Any]] = []
        nulls = []
        for (layer, head), cell in alone.items():
            changes = self.changes(cell, whole)
            flips = sign_flips(changes, generator, tests=len(alone))
            flat = torch.cat(list(changes.values()))
            nulls.append((flips.null_improved, flips.null_tied, flips.null_worsened))
            rows.append(
                {
                    "layer": layer, "head": head, "change": flips.change,
                    "log_probability_change": mean_of(cell.log_probability) - mean_of(self.plain.log_probability),
                    "improved": int((flat > 0).sum()), "worsened": int((flat < 0).sum()),
                    "p_improves": flips.improves, "p_worsens": flips.worsens,
                }
            )  # fmt: skip
        count = len(rows)
        null = [sum(shares) / count for shares in zip(*nulls, strict=True)]
        return {
            "improved": sum(row["change"] > 0 for row in rows) / count,
            "tied": sum(row["change"] == 0 for row in rows) / count,
            "worsened": sum(row["change"] < 0 for row in rows) / count,
            **dict(zip(("null_improved", "null_tied", "null_worsened"), null, strict=True)),
            **{f"sure_{word}": discoveries([row[f"p_{verb}"] for row in rows]) / count
               for word, verb in (("improved", "improves"), ("worsened", "worsens"))},
            "rows": rows,
        }  # fmt: skip

    def screen_part(
        self, alone: Mapping[tuple[int, int], Cell], on_search: Mapping[tuple[int, int], float]
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Slopes against exact changes, and the gain that the most promising heads alone would give."""
        self.say("slopes of all heads")
        samples = {name: [task.samples[i] for i in self.chosen[name]] for name, task in self.tasks.items()}
        slopes = slopes_of(self.model, self.plan(self.heads), by_mode(log_probabilities, self.request.mode), samples)
        exact = {
            head: mean_of(part_of(cell.log_probability, self.chosen))
            - mean_of(part_of(self.plain.log_probability, self.chosen))
            for head, cell in alone.items()
        }
        tried = screened_heads(slopes)
        kept = [head for head in tried if on_search[head] > 0]
        ordered = [slopes[head] for head in self.heads]
        return {
            "evaluations_share": (len(tried) + SLOPE_COST) / len(self.heads),
            "rank_correlation_log_probability": _rank(ordered, [exact[head] for head in self.heads]),
            "rank_correlation_metric": _rank(ordered, [on_search[head] for head in self.heads]),
            "rows": [
                {"layer": layer, "head": head, "slope": slopes[layer, head], "change": exact[layer, head]}
                for layer, head in self.heads
            ],
        }, [self.row("screened heads", kept, self.cell("the screened heads", kept))]

    def samples_part(self, alone: Mapping[tuple[int, int], Cell]) -> list[dict[str, Any]]:
        """Heads chosen with fewer samples."""
        largest = min(map(len, self.chosen.values()))
        rows = []
        for count in sorted({*(largest // 2**i for i in range(6) if largest // 2**i >= 2), largest}):
            numbers = {name: listed[:count] for name, listed in self.chosen.items()}
            kept = [head for head, cell in alone.items() if mean_of(self.changes(cell, numbers)) > 0]
            cell = self.cell(f"heads chosen with {count} samples", kept)
            rows.append({**self.row(f"M = {count}", kept, cell), "value": count})
        return rows

    def controls_part(self, kept: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        """As many random heads, and as many random tokens in the place of sinks."""
        others = [head for head in self.heads if head not in set(kept)]
        rows = []
        for draw in range(CONTROLS):
            generator = keyed_generator(self.request.seed, "random heads", draw)
            pool = others if len(others) >= len(kept) else self.heads
            order = torch.randperm(len(pool), generator=generator).tolist()[: len(kept)]
            heads = sorted(pool[index] for index in order)
            rows.append(self.row(f"random heads {draw}", heads, self.cell(f"random heads {draw}", heads)))
        for draw in range(CONTROLS):
            cell = self.cell(f"random tokens {draw}", kept, rule="random-tokens", seed=draw)
            rows.append(self.row(f"random tokens {draw}", kept, cell))
        return rows

    def shots_part(self, kept: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        """The kept heads at other numbers of examples, task by task, on the rows that chose no head."""
        rows: list[dict[str, Any]] = []
        plan = self.plan(kept)
        for shots in SHOTS:
            try:
                tasks = load_tasks(replace(self.request, shots=shots), self.loaded)
            except InputError as error:
                rows.append({"setting": f"{shots} examples", "refused": str(error)})
                continue
            for name, task in tasks.items():
                held = {id(self.tasks[name].samples[i]) for i in self.held_out[name]}
                places = {sample.row: id(sample) for sample in self.tasks[name].samples}
                part = replace(task, samples=[s for s in task.samples if places.get(s.row) in held])
                if not any(name == "demonstrations" for s in part.samples for name, _, _ in s.spans):
                    continue  # facts in a text, and how it goes on, have no examples
                one = {name: part}
                where = json.dumps([name, shots, {str(k): v for k, v in plan.heads.items()}])
                plain = self.cells.evaluate(f"plain {name} {shots}", self.model, one, nullcontext)
                cell = self.cells.evaluate(f"kept {where}", self.model, one, lambda: calibrated(self.model, plan))
                changes = changes_of(cell.score(self.kind), plain.score(self.kind), rounding=self.rounding)
                rows.append(
                    {
                        **standing(part, plain.metric[name]),
                        "setting": f"{name}, {shots} examples",
                        "shots": shots,
                        "gain": mean_of(changes),
                        "gain_interval": list(gain_interval(changes, seed=self.request.seed)),
                    }
                )
        return rows


def _rank(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None where one of the two is constant."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return float(stats.spearmanr(first, second).statistic)


def discoveries(p_values: Sequence[float]) -> int:
    """How many hold at a false discovery rate of 5 % (Benjamini and Hochberg 1995)."""
    return int((stats.false_discovery_control(p_values) <= FALSE_DISCOVERIES).sum())
