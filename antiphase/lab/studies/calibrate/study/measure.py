"""The experiments of the calibration paper (2406.15765, section 5) on one model: ``antiphase calibrate study``.

Heads are chosen on one part of the samples; every gain is measured on the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from scipy import stats
from transformers import PreTrainedModel

from antiphase.base.errors import InputError
from antiphase.base.folders.ownership import undone_if_refused
from antiphase.base.folders.work import work_in
from antiphase.base.randomness import keyed_generator
from antiphase.base.records import Record
from antiphase.calibration.apply import calibrated
from antiphase.calibration.changes import Scores, changes_of, gain_interval, mean_of, rounding_of, sign_flips
from antiphase.calibration.plan import CalibrationPlan, heads_by_layer
from antiphase.calibration.search import NO_SINKS, SLOPE_COST, Head, by_layer, screened_heads, slopes_of, unlike
from antiphase.calibration.variants import Rule, varied
from antiphase.lab.scoring.loading import LoadedModel, refused_by_model
from antiphase.lab.scoring.task_scores import log_probabilities
from antiphase.lab.settings.flags import kept_settings
from antiphase.lab.studies.calibrate.cells import Cells, Graded, part_of
from antiphase.lab.studies.calibrate.controls import RANDOM_HEADS, RANDOM_TOKENS, controls_of
from antiphase.lab.studies.calibrate.measuring import (
    begin,
    by_mode,
    check,
    directions,
    hash_of_sample,
    judged_split,
    load_tasks,
    not_above_chance,
    saved,
    standing,
)
from antiphase.lab.studies.calibrate.study import CalibrationStudy, CalibrationStudySettings
from antiphase.lab.text.tasks.samples import Sample, Task

CELLS = "cells.jsonl"
ALPHAS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
BETAS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
TEMPERATURES = {"1.1": 1.1, "1/1.1": 1 / 1.1}
SHOTS = (0, 1, 4)
FALSE_DISCOVERIES = 0.05
Row = dict[str, Any]
"""What a setting gains, as ``Effect`` reads it."""


def study(
    settings: CalibrationStudySettings,
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
    check(settings)
    started = perf_counter()
    with work_in(output, kept_settings(settings), resume=resume) as work:
        with undone_if_refused(output), refused_by_model(settings.name):
            loaded, tasks = begin(work, settings, say)
            heads = _heads(settings, loaded.model)
            count = len(heads) + 2 + 2 * len(ALPHAS) + RANDOM_HEADS + RANDOM_TOKENS + 10
            cells = Cells(output / CELLS, settings.mode, lambda done: report(done, max(count, done)))
            begun = _Study(settings, loaded, tasks, heads, cells, say)
            standings = begun.begin()
        with refused_by_model(settings.name):  # what has been evaluated by then stays
            found = {"tasks": standings, **begun.run()}
        return saved(CalibrationStudy, found, settings, loaded, output, seconds=perf_counter() - started)


def _heads(settings: CalibrationStudySettings, model: PreTrainedModel) -> list[Head]:
    last, maps = model.config.get_text_config().num_hidden_layers, heads_by_layer(model)
    layers = range(last) if settings.layers is None else sorted(set(settings.layers))
    return [(layer, head) for layer in layers for head in range(maps.get(layer, 1))]


class _Study:
    def __init__(
        self,
        settings: CalibrationStudySettings,
        loaded: LoadedModel,
        tasks: dict[str, Task],
        heads: list[Head],
        cells: Cells,
        say: Callable[[str], None],
    ) -> None:
        self.settings, self.loaded, self.model, self.tasks, self.heads = settings, loaded, loaded.model, tasks, heads
        self.cells, self.say, self.kind = cells, say, settings.score
        split = judged_split(settings, {name: task.samples for name, task in tasks.items()}, say)
        self.chosen, self.held_out, self.left_out = split.search_numbers, split.held_out_numbers, split.left_out
        self.spans = {
            sample.prompt: {name: (start, stop) for name, start, stop in sample.spans}
            for task in tasks.values()
            for sample in (*task.samples, *task.content_free)
        }

    # ------------------------------------------------------------------------------------------ settings

    def plan(self, heads: Sequence[Head], **changes: Any) -> CalibrationPlan:
        rule = {"alpha": self.settings.alpha, "beta": self.settings.beta, "mode": self.settings.mode, **changes}
        return CalibrationPlan(by_layer(heads), **rule)

    def cell(self, name: str, heads: Sequence[Head], *, rule: Rule | None = None, **changes: Any) -> Graded:
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

    def changes(self, cell: Graded, numbers: Mapping[str, Sequence[int]]) -> Scores:
        """What a setting changes in the scores of some samples, rounding apart."""
        after, before = (part_of(c.score(self.kind), numbers) for c in (cell, self.plain))
        return changes_of(after, before, rounding=self.rounding)

    def measures(self, cell: Graded) -> dict[str, Any]:
        """Of each classification, on the samples that chose no head."""
        return cell.measures(self.held_out)

    def gain(self, changes: Scores) -> Row:
        interval = list(gain_interval(changes, seed=self.settings.seed))
        return {"gain": mean_of(changes), "gain_interval": interval, **directions(changes)}

    def row(self, setting: str, heads: Sequence[Head], *, value: float | None = None, **changes: Any) -> Row:
        """The gain on the samples that chose no head; ``value``: of what a sweep goes over."""
        cell = self.cell(setting, heads, **changes)
        smooth = [mean_of(part_of(c.log_probability, self.held_out)) for c in (cell, self.plain)]
        centred = [c.centred_accuracy(self.held_out) for c in (cell, self.plain)] if cell.labels else None
        return {
            "setting": setting,
            "heads": len(heads),
            "score": mean_of(part_of(cell.score(self.kind), self.held_out)),
            **self.gain(self.changes(cell, self.held_out)),
            "log_probability_gain": smooth[0] - smooth[1],
            "mean_centred_gain": None if centred is None else centred[0] - centred[1],
            **({} if value is None else {"value": value}),
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
        for row in standings:
            if not row["above_chance"]:
                raise InputError(
                    f"--task {row['task']}: {not_above_chance(row)}, so no effect could be seen; remove it, or give "
                    "more --shots or --samples"
                )
        return standings

    def run(self) -> dict[str, Any]:
        """Every part that was asked for."""
        self.alone = {head: self.cell(f"head {head[0]}.{head[1]} alone", [head]) for head in self.heads}
        self.on_search = {head: mean_of(self.changes(cell, self.chosen)) for head, cell in self.alone.items()}
        self.kept = [head for head in self.heads if self.on_search[head] > 0]
        rows = {"kept heads": [self.row("kept heads", self.kept)]}
        found: dict[str, Any] = {
            "score": self.kind,
            "rounding": self.rounding,
            "held_out_before": mean_of(part_of(self.plain.score(self.kind), self.held_out)),
            "left_out": self.left_out,
            "kept": by_layer(self.kept),
            "measures": self.measures(self.plain),
            "measures_calibrated": self.measures(self.cell("kept heads", self.kept)),
            "rows": rows,
        }
        asked = set(self.settings.parts)
        if "heads" in asked:
            found["heads"] = self.heads_alone()
        if "screen" in asked:
            found["screen"], rows["screen"] = self.screen()
        parts: dict[str, Iterator[Row]] = {
            "temperature": (self.row(f"× {words}, all heads", self.heads, rule="temperature", temperature=factor)
                            for words, factor in TEMPERATURES.items()),
            "inverse": self.inverse(),
            "redistribution": (self.row(rule, self.kept, rule=rule) for rule in self.rules()),
            "alpha": (self.row(f"α = {alpha:g}", self.kept, value=alpha, alpha=alpha) for alpha in ALPHAS),
            "beta": (self.row(f"β = {beta:g}", self.kept, value=beta, beta=beta) for beta in BETAS),
            "samples": self.samples(), "subsets": self.subsets(), "controls": self.controls(), "shots": self.shots(),
        }  # fmt: skip
        for name, part in parts.items():
            if name in asked:
                self.say(name)
                rows[name] = list(part)
        return found

    def heads_alone(self) -> dict[str, Any]:
        """Each head alone, on all samples, beside what flipping the signs of the samples' changes would give.

        Copies do not count: flips of several copies would be independent, and their changes are not.
        """
        whole = {name: _distinct(task.samples) for name, task in self.tasks.items()}
        generator = keyed_generator(self.settings.seed, "sign flips")
        rows, nulls = [], []
        for (layer, head), cell in self.alone.items():
            changes = self.changes(cell, whole)
            flips = sign_flips(changes, generator, tests=len(self.alone))
            flat = torch.cat(list(changes.values()))
            nulls.append({word: getattr(flips, word) for word in ("null_improved", "null_tied", "null_worsened")})
            rows.append(
                {
                    "layer": layer, "head": head, "change": flips.change,
                    "log_probability_change": mean_of(cell.log_probability) - mean_of(self.plain.log_probability),
                    "improved": int((flat > 0).sum()), "worsened": int((flat < 0).sum()),
                    "p_improves": flips.improves, "p_worsens": flips.worsens,
                }
            )  # fmt: skip
        count = len(rows)
        return {
            "improved": sum(row["change"] > 0 for row in rows) / count,
            "tied": sum(row["change"] == 0 for row in rows) / count,
            "worsened": sum(row["change"] < 0 for row in rows) / count,
            **{word: sum(null[word] for null in nulls) / count for word in nulls[0]},
            **{f"sure_{word}": discoveries([row[f"p_{verb}"] for row in rows]) / count
               for word, verb in (("improved", "improves"), ("worsened", "worsens"))},
            "rows": rows,
        }  # fmt: skip

    def screen(self) -> tuple[dict[str, Any], list[Row]]:
        """Slopes against exact changes, and the gain that the most promising heads alone would give."""
        self.say("slopes of all heads")
        samples = {name: [task.samples[i] for i in self.chosen[name]] for name, task in self.tasks.items()}
        slopes = slopes_of(self.model, self.plan(self.heads), by_mode(log_probabilities, self.settings.mode), samples)
        exact = {
            head: mean_of(part_of(cell.log_probability, self.chosen))
            - mean_of(part_of(self.plain.log_probability, self.chosen))
            for head, cell in self.alone.items()
        }
        tried = screened_heads(slopes)
        ordered = [slopes[head] for head in self.heads]
        return {
            "evaluations_share": (len(tried) + SLOPE_COST) / len(self.heads),
            "rank_correlation_log_probability": _rank(ordered, [exact[head] for head in self.heads]),
            "rank_correlation_metric": _rank(ordered, [self.on_search[head] for head in self.heads]),
            "rows": [
                {"layer": layer, "head": head, "slope": slopes[layer, head], "change": exact[layer, head]}
                for layer, head in self.heads
            ],
        }, [self.row("screened heads", [head for head in tried if head in self.kept])]

    def inverse(self) -> Iterator[Row]:
        """Sinks get more instead of less; and, beside it, every head calibrated."""
        yield self.row("inverse, kept heads", self.kept, rule="inverse")
        yield self.row("inverse, all heads", self.heads, rule="inverse")
        yield self.row("calibrated, all heads", self.heads)

    def rules(self) -> list[Rule]:
        """Where the freed weight may go, as far as the prompts have such parts."""
        filled = {name for parts in self.spans.values() for name, (start, stop) in parts.items() if stop > start}
        parts: tuple[Rule, ...] = ("question", "demonstrations", "choices")
        return ["proportional", "uniform", *(part for part in parts if part in filled)]

    def samples(self) -> Iterator[Row]:
        """Heads chosen with fewer samples."""
        largest = min(map(len, self.chosen.values()))
        for count in sorted({*(largest // 2**i for i in range(6) if largest // 2**i >= 2), largest}):
            numbers = {name: listed[:count] for name, listed in self.chosen.items()}
            kept = [head for head, cell in self.alone.items() if mean_of(self.changes(cell, numbers)) > 0]
            yield self.row(f"M = {count}", kept, value=count)

    def subsets(self) -> Iterator[Row]:
        """The best of the kept heads."""
        ranked = sorted(self.kept, key=lambda head: -self.on_search[head])
        for count in (*(2**i for i in range(12) if 2**i < len(ranked)), *([len(ranked)] if ranked else [])):
            yield self.row(f"best {count}", ranked[:count], value=count)

    def controls(self) -> Iterator[Row]:
        """As many random heads, random tokens and the first token in the place of sinks, and the inverse rule."""
        for control in controls_of(self.kept, self.heads, self.settings.seed):
            drawn = {"seed": control.seed} if control.rule == "random-tokens" else {}
            yield self.row(control.setting, control.heads, rule=control.rule, **drawn)

    def shots(self) -> Iterator[Row]:
        """The kept heads at other numbers of examples, task by task, on the rows that chose no head."""
        plan = self.plan(self.kept)
        for shots in SHOTS:
            try:
                tasks = load_tasks(replace(self.settings, shots=shots), self.loaded)
            except InputError as error:
                yield {"setting": f"{shots} examples", "refused": str(error)}
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
                yield {
                    **standing(part, plain.metric[name]),
                    "setting": f"{name}, {shots} examples",
                    "shots": shots,
                    **self.gain(changes),
                }


def _distinct(samples: Sequence[Sample]) -> list[int]:
    """Places of the first samples of each kind."""
    return unlike(range(len(samples)), (), lambda place: hash_of_sample(samples[place]))


def _rank(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None where one of the two is constant."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return float(stats.spearmanr(first, second).statistic)


def discoveries(p_values: Sequence[float]) -> int:
    """How many hold at a false discovery rate of 5 % (Benjamini and Hochberg 1995)."""
    return int((stats.false_discovery_control(p_values) <= FALSE_DISCOVERIES).sum())
