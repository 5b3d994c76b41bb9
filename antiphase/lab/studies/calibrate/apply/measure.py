"""A model with and without a plan, from request to record: ``antiphase calibrate apply``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import PreTrainedModel

from antiphase.base.errors import InputError, within
from antiphase.base.folders.ownership import new_folder
from antiphase.base.records import Record
from antiphase.calibration.apply import calibrated
from antiphase.calibration.changes import changes_of, gain_interval, mean_of
from antiphase.calibration.plan import CalibrationPlan
from antiphase.calibration.search import unlike
from antiphase.lab.scoring.lengths import context_length
from antiphase.lab.scoring.likelihood import generated_tokens
from antiphase.lab.scoring.loading import LoadedModel, load_model, refused_by_model
from antiphase.lab.studies.calibrate.apply import Apply, ApplySettings
from antiphase.lab.studies.calibrate.cells import cell_of, scored
from antiphase.lab.studies.calibrate.measuring import (
    CHOSEN_ON,
    check_judges,
    check_model,
    directions,
    hash_of_sample,
    load_tasks,
    saved,
    standing,
)
from antiphase.lab.text.tasks.samples import Task
from antiphase.lab.text.tokenization import prompt_tokens
from antiphase.lab.training.device import loading_options


def apply(
    settings: ApplySettings,
    output: Path,
    *,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[int, int], None] = lambda done, count: None,
) -> Record:
    """A model with and without a plan: scores on tasks, and continued texts. Writes ``record.json``.

    Raises:
        InputError: a model, plan or task that cannot be used, a folder that is not empty.
    """
    settings.check()
    plan = CalibrationPlan.load(settings.plan)
    started = perf_counter()
    with new_folder(output):
        loaded = load_model(settings.name, **loading_options(settings))
        with within("plan", settings.plan):
            plan.check(loaded.model)
        tasks = load_tasks(settings, loaded)
        rows, texts, total = [], [], len(tasks) + len(settings.texts)
        with refused_by_model(settings.name):
            if tasks:
                check_model(loaded.model, tasks, plan)
            for task in tasks.values():
                rows.append(_compared(loaded.model, plan, task, settings.seed, say))
                report(len(rows), total)
            for text in settings.texts:
                texts.append(_continued(loaded, plan, text, settings))
                report(len(rows) + len(texts), total)
        applied = {name: value for name, value in asdict(plan).items() if name != "scores"}
        values = {"plan": applied, "tasks": rows, "texts": texts}
        return saved(Apply, values, settings, loaded, output, seconds=perf_counter() - started)


def _chosen_on(plan: CalibrationPlan) -> set[str] | None:
    """Hashes of the samples that chose a plan's heads; None if the plan does not have them."""
    if CHOSEN_ON not in plan.scores:
        return None
    listed = plan.scores[CHOSEN_ON]
    if not isinstance(listed, dict) or not all(isinstance(hashes, list) for hashes in listed.values()):
        raise InputError(f"--plan: {CHOSEN_ON} must list hashes by task, got {listed!r}")
    return {str(number) for hashes in listed.values() for number in hashes}


def _compared(
    model: PreTrainedModel, plan: CalibrationPlan, task: Task, seed: int, say: Callable[[str], None]
) -> dict[str, Any]:
    known = _chosen_on(plan)
    if known is None:
        say("--plan does not say which samples chose its heads, so none is left out; give it data of its own")
    judges = unlike(task.samples, known or (), hash_of_sample)
    left_out = len(task.samples) - len(judges)
    if left_out:
        say(f"{task.name}: {left_out} of {len(task.samples)} samples chose the plan's heads, or are copies, and are "
            "left out")  # fmt: skip
    check_judges(task.name, len(judges))
    judged = {task.name: replace(task, samples=judges)}
    say(f"{task.name}: without the plan")
    before = cell_of(scored(model, judged, stepwise=plan.mode == "paper", where="the model as it is"), judged)
    say(f"{task.name}: with the plan")
    with calibrated(model, plan):
        after = cell_of(scored(model, judged, stepwise=plan.mode == "paper", where="the plan's heads"), judged)
    changes = changes_of(after.metric, before.metric)
    return {
        **standing(task, before.metric[task.name]),
        "left_out": left_out,
        "calibrated": mean_of(after.metric),
        "gain": mean_of(changes),
        "gain_interval": list(gain_interval(changes, seed=seed)),
        **directions(changes),
        "measures": before.measures().get(task.name),
        "measures_calibrated": after.measures().get(task.name),
    }


@torch.no_grad()
def _continued(loaded: LoadedModel, plan: CalibrationPlan, text: str, settings: ApplySettings) -> dict[str, str]:
    longest = settings.max_new_tokens
    ids = [prompt_tokens(loaded.tokenizer, text, chat=settings.chat_template)]
    if not ids[0]:
        raise InputError("--text must not be empty")
    limit = context_length(loaded.model)
    if limit is not None and len(ids[0]) + longest > limit:
        raise InputError(
            f"--text: {len(ids[0])} tokens and --max-new-tokens {longest} are more than the {limit} it can read"
        )
    plain = generated_tokens(loaded.model, ids, longest=longest)[0]
    with calibrated(loaded.model, plan):
        changed = generated_tokens(loaded.model, ids, longest=longest)[0]
    return {
        "text": text,
        "plain": loaded.tokenizer.decode(plain, skip_special_tokens=True),
        "calibrated": loaded.tokenizer.decode(changed, skip_special_tokens=True),
    }
