"""From a plan to a verdict: ``antiphase calibrate confirm``.

What is measured is written down first. Heads are chosen by one part of the samples, and heads, α and β are fixed before
the other part is judged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.attention.statistics import attention_statistics
from antiphase.base.errors import InputError
from antiphase.base.folders.contents import hash_of
from antiphase.base.folders.ownership import undone_if_refused
from antiphase.base.folders.work import work_in
from antiphase.base.records import Record
from antiphase.calibration.changes import changes_of, mean_of, rounding_of
from antiphase.calibration.search import NO_SINKS, Head, by_layer, each_alone, split_samples, unlike
from antiphase.lab.scoring.beginnings import batches
from antiphase.lab.scoring.likelihood import FILLED_TOKENS
from antiphase.lab.scoring.loading import refused_by_model
from antiphase.lab.scoring.padding import padded, padding
from antiphase.lab.settings.flags import kept_settings
from antiphase.lab.studies.calibrate.cells import Cells, Graded, cell_of, scored
from antiphase.lab.studies.calibrate.confirm import PRIMARY, Acting, Confirm, ConfirmSettings
from antiphase.lab.studies.calibrate.confirm.outcomes import (
    ACCURACY,
    centred_log_probabilities,
    finding,
    likelihoods,
    outcomes,
    pooled_centred,
)
from antiphase.lab.studies.calibrate.controls import RANDOM_HEADS, RANDOM_TOKENS, Control, controls_of
from antiphase.lab.studies.calibrate.measuring import (
    begin,
    check,
    check_judges,
    dtype_of,
    hash_of_sample,
    measured_seconds,
    saved,
    spoken_time,
    standing,
    text_of,
    tokens_of,
)
from antiphase.lab.studies.claims import Claim, register, registered
from antiphase.lab.text.tasks.chance import best_guess
from antiphase.lab.text.tasks.samples import Sample, Task

CELLS = "cells.jsonl"
CLAIM = {
    "measure": "share of samples answered right after each label's mean log score over its task is subtracted, pooled "
    "over the judging samples of all tasks that choose heads; McNemar's exact test, two-sided, 5 %",
    "direction": "higher with the chosen heads calibrated than without",
    "heads": "those whose calibration alone raises the log probability of right labels after mean-centring, on the "
    "samples that choose, in the mean over tasks",
    "secondary": "accuracy, content-free accuracy, balanced accuracy, AUC; the primary measure, accuracy and AUC "
    "by task: intervals alone",
    "samples": "each text judges once, and none that chose heads, whatever their labels",
    "controls": f"as many random heads of all that were tried ({RANDOM_HEADS} draws), as many random tokens "
    f"({RANDOM_TOKENS} draws), the first token alone, the inverse rule, all tried heads",
}


def confirm(
    settings: ConfirmSettings,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[int, int], None] = lambda done, count: None,
) -> Record:
    """Choose heads on one part of the samples and judge them on the other. Writes ``claim.json``, ``record.json``.

    Raises:
        InputError: a model, task or value that cannot be used, a folder with other contents.
    """
    check(settings)
    started = perf_counter()
    with work_in(output, kept_settings(settings), resume=resume) as work:
        with undone_if_refused(output), refused_by_model(settings.name):
            loaded, tasks = begin(work, replace(settings, tasks=(*settings.tasks, *settings.also)), say)
            study = _Confirmation(settings, loaded.model, tasks, output, say)
            register(output, study.claim())
            study.find_heads()
        with refused_by_model(settings.name):  # what has been evaluated by then stays
            values = study.run(report)
        claim = registered(output, study.claim())
        assert claim is not None
        found = {"claim": claim, "dtype": dtype_of(loaded.model), **values}
        return saved(Confirm, found, settings, loaded, output, seconds=perf_counter() - started)


class _Confirmation:
    def __init__(
        self,
        settings: ConfirmSettings,
        model: PreTrainedModel,
        tasks: dict[str, Task],
        output: Path,
        say: Callable[[str], None],
    ) -> None:
        self.settings, self.model, self.say = settings, model, say
        self.pooled = list(tasks)[: len(settings.tasks)]
        for name, task in tasks.items():
            if not task.labels:
                raise InputError(f"--task {name}: its samples have no labels in common; give tasks of classification")
        split = split_samples(
            {name: tasks[name].samples for name in self.pooled}, held_out=settings.held_out, seed=settings.seed
        )
        self.search = {name: replace(tasks[name], samples=split.search[name]) for name in self.pooled}
        known = {text_of(sample) for some in split.search.values() for sample in some}
        self.judged, self.dropped = {}, {}
        for name, task in tasks.items():
            given: Sequence[Sample] = split.held_out.get(name, task.samples)
            fresh = unlike(given, known, text_of)  # whatever their labels
            self.dropped[name] = len(given) - len(fresh)
            if self.dropped[name]:
                say(f"{name}: {self.dropped[name]} of {len(given)} samples that judge are copies of samples that "
                    "choose heads, or of each other, and are left out")  # fmt: skip
            check_judges(name, len(fresh))
            self.judged[name] = replace(task, samples=fresh, chance=best_guess(fresh))
        each = -(-settings.control_samples // len(self.pooled))
        self.few = {name: replace(self.judged[name], samples=self.judged[name].samples[:each]) for name in self.pooled}
        self.rule: dict[str, Any] = {"alpha": settings.alpha, "beta": settings.beta, "mode": settings.mode}
        self.cells = Cells(output / CELLS, settings.mode, lambda done: None)

    def claim(self) -> Claim:
        """What is measured and how, on which samples: all that is fixed before the first score."""
        settings = self.settings
        tasks = [
            {"task": name, "choose": len(self.search[name].samples) if name in self.search else 0,
             "judge": len(task.samples), "primary": name in self.pooled}
            for name, task in self.judged.items()
        ]  # fmt: skip
        return Claim(
            question="Does the model read better with the chosen heads calibrated than without?",
            contrast=f"{PRIMARY}: kept heads - none",
            n=sum(len(self.judged[name].samples) for name in self.pooled),
            details={
                **CLAIM, **self.rule, "model": settings.name, "layers": settings.layers or "all", "seed": settings.seed,
                "least_sinks": settings.least_sinks, "tasks": tasks,
                "control_samples": sum(len(task.samples) for task in self.few.values()),
            },
        )  # fmt: skip

    def find_heads(self) -> None:
        """The heads to try, by sinks in the prompts that choose.

        Raises:
            InputError: there is none.
        """
        self.sinks = self._sinks()
        prompts = sum(len(task.samples) for task in self.search.values())
        some = next(iter(self.sinks.values()))
        self.shares = {head: sum(counts[head][0] for counts in self.sinks.values()) / prompts for head in some}
        self.tried = [head for head, share in self.shares.items() if share >= self.settings.least_sinks]
        if not self.tried:
            raise InputError("--least-sinks: no head has a sink in so many prompts; lower it, or lower --alpha")

    def run(self, report: Callable[[int, int], None]) -> dict[str, Any]:
        """Every evaluation, and what follows from them."""
        shares, tried = self.shares, self.tried
        total = len(tried) + 3 + 2 * len(self.judged) + RANDOM_HEADS + RANDOM_TOKENS + 3
        self.cells.say = lambda done: report(min(done, total), total)
        self._tell_time(tried, len(shares))
        alone = self._search(tried)
        changes = {head: mean_of(of_samples) for head, of_samples in alone.items()}
        kept = [head for head in tried if changes[head] > 0]
        self.say(f"{len(kept)} of {len(tried)} heads kept; judging")
        chosen = Control("kept heads", kept)
        before = {name: self._judge("plain", name, None) for name in self.judged}
        after = {name: self._judge("kept heads", name, chosen) for name in self.judged} if kept else before
        pairs = {name: (before[name].labels[name], after[name].labels[name]) for name in self.judged}
        primary, secondary = outcomes(pairs, self.pooled, seed=self.settings.seed)
        plain = next(row for row in secondary if (row["measure"], row["task"]) == (ACCURACY, None))
        scores = [centred_log_probabilities(_part(cells, self.judged, self.pooled)) for cells in (before, after)]
        likelihood = likelihoods(
            changes_of(scores[1], scores[0]) if kept else None, list(alone.values()), seed=self.settings.seed
        )
        controls = self._controls(chosen, tried, before, after) if kept else []
        p_random = _p_random(controls)
        return {
            "tasks": [standing(self.judged[name], cell.metric[name]) for name, cell in before.items()],
            "searched": {name: len(task.samples) for name, task in self.search.items()},
            "dropped": self.dropped,
            "heads": by_layer(kept),
            "tried": [
                {"layer": layer, "head": head, "sinks": shares[layer, head], "change": changes[layer, head]}
                for layer, head in tried
            ],
            "all_heads": len(shares),
            "acting": [self._acting(name, tried) for name in self.pooled],
            "primary": primary,
            "secondary": secondary,
            "measures": {name: plain.measures() for name, (plain, _) in pairs.items()},
            "measures_calibrated": {name: calibrated.measures() for name, (_, calibrated) in pairs.items()},
            "likelihood": likelihood,
            "controls": controls,
            "control_samples": sum(len(task.samples) for task in self.few.values()),
            "p_random_heads": p_random,
            "verdict": finding(primary, plain, p_random, len(kept)),
        }

    def _sinks(self) -> dict[str, dict[Head, list[int]]]:
        """``heads_with_sinks`` of the prompts that choose heads, by task."""
        key = key_of("sinks", [], self.search)
        if key not in self.cells.known:
            self.say("looking for heads with sinks")
            found = {
                name: heads_with_sinks(self.model, [sample.prompt for sample in task.samples], self.settings.alpha)
                for name, task in self.search.items()
            }
            self.cells.keep(key, {"sinks": {name: list(counts.items()) for name, counts in found.items()}})
        wanted = self.settings.layers
        return {
            name: {(layer, head): counts for (layer, head), counts in rows if wanted is None or layer in wanted}
            for name, rows in self.cells.known[key]["sinks"].items()
        }

    def _acting(self, name: str, tried: Sequence[Head]) -> Acting:
        prompts, counts = len(self.search[name].samples), self.sinks[name]
        seen, any_sink = (sum(counts[head][kind] for head in tried) / (len(tried) * prompts) for kind in (0, 1))
        return Acting(task=name, prompts=prompts, any_sink=any_sink, seen_by_enough=seen)

    def _tell_time(self, tried: Sequence[Head], count: int) -> None:
        last = self.model.config.get_text_config().num_hidden_layers
        search, judged, few = (
            sum(tokens_of(task.samples) for task in tasks.values()) for tasks in (self.search, self.judged, self.few)
        )
        samples = [sample for task in self.search.values() for sample in task.samples]
        speed = tokens_of(samples) / measured_seconds(self.model, samples, self.settings.mode)
        evaluated = search * (3 + sum(1 - layer / last for layer, _ in tried)) + 2 * judged
        evaluated += few * (RANDOM_HEADS + RANDOM_TOKENS + 3)
        self.say(
            f"{len(tried)} of {count} heads have sinks and are tried on {len(samples):,} samples; "
            f"{sum(len(task.samples) for task in self.judged.values()):,} others judge: "
            f"{spoken_time(evaluated / speed)} in all at {speed:,.0f} tokens/s"
        )

    def _search(self, tried: Sequence[Head]) -> dict[Head, dict[str, Tensor]]:
        """What each head alone changes in the centred log probability of each sample."""
        every = Control("every head, no sink", list(tried))
        plain = self.cells.evaluate(key_of("plain", [], self.search), self.model, self.search, nullcontext)
        rounded = self.cells.evaluate(
            key_of("no sink", tried, self.search), self.model, self.search,
            partial(every.applied, self.model, NO_SINKS, self.settings.beta, self.settings.mode),
        )  # fmt: skip
        base = centred_log_probabilities(plain)
        rounding = rounding_of(base, centred_log_probabilities(rounded))
        keys = {head: key_of("alone", [head], self.search) for head in tried}
        left = [head for head in tried if keys[head] not in self.cells.known]
        unchanged = self.cells.known[key_of("plain", [], self.search)]
        measure = partial(scored, self.model, self.search, stepwise=self.cells.stepwise, where="a head alone")
        for head, found in each_alone(self.model, left, self.rule, measure, shares_lower=True):
            self.cells.keep(keys[head], unchanged if found is None else found)
            self.cells.say(len(self.cells.known))
        changes = {}
        for head in tried:
            alone = cell_of(self.cells.known[keys[head]], self.search)
            changes[head] = changes_of(centred_log_probabilities(alone), base, rounding=rounding)
        return changes

    def _judge(self, words: str, name: str, control: Control | None) -> Graded:
        """One task's samples that judge."""
        setting = nullcontext if control is None else partial(control.applied, self.model, **self.rule)
        tasks = {name: self.judged[name]}
        return self.cells.evaluate(key_of(words, control.heads if control else [], tasks), self.model, tasks, setting)

    def _controls(
        self, chosen: Control, tried: Sequence[Head], before: dict[str, Graded], after: dict[str, Graded]
    ) -> list[dict[str, Any]]:
        """Gains of the kept heads and of every control in the primary measure, on the same few samples."""
        plain, kept = (pooled_centred(_part(cells, self.few, self.pooled)) for cells in (before, after))
        rows = [{"setting": chosen.setting, "heads": len(chosen.heads), "gain": kept - plain}]
        every = Control("all tried heads", list(tried))
        for control in (*controls_of(chosen.heads, tried, self.settings.seed), every):
            setting = partial(control.applied, self.model, **self.rule)
            key = key_of(control.setting, control.heads, self.few)
            cell = self.cells.evaluate(key, self.model, self.few, setting)
            gain = pooled_centred(cell) - plain
            rows.append({"setting": control.setting, "heads": len(control.heads), "gain": gain})
        return rows


@torch.no_grad()
def heads_with_sinks(model: PreTrainedModel, prompts: Sequence[Sequence[int]], alpha: float) -> dict[Head, list[int]]:
    """In how many of some prompts each head has a sink beside the first token: one that N / alpha queries see, or any.

    Calibration reduces any of them.
    """
    counts: dict[Head, list[int]] = {}
    for rows in batches(model, prompts, 8 * FILLED_TOKENS, filled=FILLED_TOKENS):
        ids, mask = padded([prompts[row] for row in rows], model.device)
        found = attention_statistics(model, alpha=alpha, input_ids=ids, **padding(model, mask))
        for kind, sinks in enumerate((found.sinks & found.enough_queries[:, :, None], found.sinks)):
            for layer, of_layer in zip(found.layers, sinks.any(-1).sum(1).tolist(), strict=True):
                for head, count in enumerate(of_layer):
                    counts.setdefault((layer, head), [0, 0])[kind] += count
    return counts


def key_of(setting: str, heads: Sequence[Head], tasks: Mapping[str, Task]) -> str:
    """What an evaluation is remembered by: all that differs between two of them in one folder."""
    samples = {name: [hash_of_sample(sample) for sample in task.samples] for name, task in tasks.items()}
    return json.dumps([setting, by_layer(heads), hash_of(samples)])


def _part(cells: dict[str, Graded], tasks: dict[str, Task], names: Sequence[str]) -> Graded:
    """As many first samples of these tasks."""
    return Graded({}, {}, {name: cells[name].labels[name].part(range(len(tasks[name].samples))) for name in names})


def _p_random(controls: Sequence[dict[str, Any]]) -> float | None:
    """How often random heads gain as much as the kept ones, which count as one draw more."""
    if not controls:
        return None
    gains = [row["gain"] for row in controls if row["setting"].startswith("random heads")]
    return (1 + sum(gain >= controls[0]["gain"] for gain in gains)) / (1 + len(gains))
