"""One run or one measurement, from settings to record: what ``antiphase train`` and ``antiphase evaluate`` do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed import is_torchelastic_launched
from transformers import PreTrainedModel

from antiphase.config import DataSettings, RunSettings
from antiphase.data.packing import pack
from antiphase.data.prepare import PreparedData, prepare
from antiphase.errors import InputError
from antiphase.evals.allocation import allocation
from antiphase.evals.loading import LoadedModel, load_model
from antiphase.evals.needles import first_query_accuracy, needle_grid, predictor, summarize, tasks_of
from antiphase.evals.perplexity import perplexity
from antiphase.models.transformer import AntiphaseForCausalLM
from antiphase.randomness import keyed_generator
from antiphase.records import Record, finite
from antiphase.training.loop import Evaluation, Reporter, check_settings, choose_device, train
from antiphase.training.run_folder import check_run, make_folder, undone_if_refused

FOREIGN_LENGTH = 512
"""Tokens in a sequence for a model that was not trained here, unless ``--length`` says otherwise."""


def curve_evaluations(settings: RunSettings, data: PreparedData) -> dict[str, Evaluation]:
    """First-query accuracy and held-out loss, on sequences that are the same at every step and in every arm."""
    held_out = data.task().sample(settings.evaluation.curve_samples, keyed_generator("curve"))
    batch = data.validation(settings.evaluation.validation_sequences)

    def retrieval(model: AntiphaseForCausalLM) -> Mapping[str, float]:
        return {"accuracy": first_query_accuracy(model, held_out)}

    def loss(model: AntiphaseForCausalLM) -> Mapping[str, float]:
        return {"loss": perplexity(model, batch)["loss"]}

    return {"retrieval": retrieval, "loss": loss}


def train_run(
    settings: RunSettings,
    output: Path,
    *,
    resume: bool,
    report: Reporter = lambda step, values: None,
    say: Callable[[str], None] = lambda message: None,
) -> Record:
    """Prepare the data of a run, train it, and return its record."""
    check_run(output, settings, resume=resume)
    with _undone(_beside(output)):
        data = prepare(settings.data, _beside(output), progress=say)
        check_settings(settings, data.tokenizer)
    return train(settings, data, output, evaluations=curve_evaluations(settings, data), resume=resume, report=report)


def _beside(output: Path) -> Path:
    """Where a single run keeps its tokens: next to its folder, which has to be new when training starts."""
    return output.parent / f"{output.name}-tokens"


def _undone(folder: Path) -> AbstractContextManager[None]:
    """``undone_if_refused``, but of several processes none may take away what another reads."""
    return nullcontext() if is_torchelastic_launched() else undone_if_refused(folder)


def evaluate(
    measurement: str,
    name: str,
    output: Path,
    *,
    paths: Sequence[str],
    text_field: str | None,
    length: int | None,
    needles: Sequence[int],
    queries: int | None,
    depths: Sequence[float],
    samples: int,
    seed: int,
    device: str,
    say: Callable[[str], None] = lambda message: None,
) -> Record:
    """Measure one model and write ``record.json`` in ``output``.

    Args:
        measurement: "perplexity", "needles" or "allocation".
        name: local folder or Hub name of any causal language model.
        paths: held-out text (``--data``); may be empty for a model trained here, whose own held-out data is used.
        length, needles, queries, depths, samples: sizes; None or empty: those of the model's training, or defaults.

    Raises:
        InputError: a model, text or size that cannot be used, or an output folder that is not empty.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"--output {output} exists and is not empty; choose another folder")
    least = {"--samples": (1, [samples]), "--needles": (1, needles), "--queries": (1, [queries])}
    for flag, (bound, given) in {**least, "--length": (2, [length])}.items():
        if any(number is not None and number < bound for number in given):
            raise InputError(f"{flag} must be at least {bound}, got {', '.join(map(str, given))}")
    started = time.perf_counter()
    with undone_if_refused(output), undone_if_refused(_beside(output)):
        make_folder(output)
        loaded = load_model(name, device=str(choose_device(device)))
        longest = getattr(loaded.model.config, "max_position_embeddings", None)
        if longest is not None and (length or 0) > longest:
            raise InputError(f"--length {length} is longer than the {longest} positions of {name}; shorten it")
        data = _data_for(loaded, output, paths, text_field, length, needles, queries, say)
        say(f"measuring {measurement}")
        values = _MEASUREMENTS[measurement](loaded.model, data, needles, depths, samples, seed)
        record = Record(
            kind=f"evaluate-{measurement}",
            values=finite({"model": name, **values}),
            config=finite(
                {"data": data.settings, "samples": samples, "depths": list(depths), "needles": list(needles)}
            ),
            seeds=[seed],
            seconds=time.perf_counter() - started,
        )
        record.save(output)
    return record


def _data_for(
    loaded: LoadedModel,
    output: Path,
    paths: Sequence[str],
    text_field: str | None,
    length: int | None,
    needles: Sequence[int],
    queries: int | None,
    say: Callable[[str], None],
) -> PreparedData:
    """Held-out data: the given text, or what the model's own run held out."""
    longest = getattr(loaded.model.config, "max_position_embeddings", None) or FOREIGN_LENGTH
    unknown = DataSettings(source="text", sequence_length=min(FOREIGN_LENGTH, longest))
    settings = loaded.settings.data if loaded.settings else unknown
    given = {"sequence_length": length, "needles": needles[0] if needles else None, "queries": queries}
    for field, value in given.items():
        if value is not None:
            setattr(settings, field, value)
    if not paths and loaded.settings is None:
        raise InputError(f"--data is missing: {loaded.name} was not trained here, so it needs held-out text")
    if not paths:
        tokenizer = settings.tokenizer if settings.source == "synthetic" else loaded.name
        cache = (
            settings.cache if settings.cache and Path(settings.cache).is_dir() else None
        )  # a run may have been moved
        return prepare(replace(settings, tokenizer=tokenizer, cache=cache), _beside(output), progress=say)
    settings = replace(settings, source="text", paths=[], validation=list(paths), text_field=text_field)
    say("packing the text into tokens")
    packed = pack(
        paths, loaded.tokenizer, sequence_length=settings.sequence_length, text_field=text_field, cache=_beside(output)
    )
    return PreparedData(settings, loaded.tokenizer, None, packed)


def _measure_perplexity(
    model: PreTrainedModel,
    data: PreparedData,
    needles: Sequence[int],
    depths: Sequence[float],
    samples: int,
    seed: int,
) -> dict[str, Any]:
    return {"rows": [{"sequences": samples, **perplexity(model, data.validation(samples))}]}


def _measure_needles(
    model: PreTrainedModel,
    data: PreparedData,
    needles: Sequence[int],
    depths: Sequence[float],
    samples: int,
    seed: int,
) -> dict[str, Any]:
    defaults = (data.settings.needles, data.settings.sequence_length)
    tasks = tasks_of(data.task, needles=needles, lengths=[], defaults=defaults)
    cells = needle_grid(predictor(model), tasks, depths=depths, samples=samples, seed=seed)
    return {"cells": cells, "summary": summarize(cells), "guess_rate": tasks[0].guess_rate}


def _measure_allocation(
    model: PreTrainedModel,
    data: PreparedData,
    needles: Sequence[int],
    depths: Sequence[float],
    samples: int,
    seed: int,
) -> dict[str, Any]:
    batch = data.task().sample(samples, keyed_generator(seed, "allocation"))
    return {"rows": allocation(model, batch)}


_MEASUREMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    "perplexity": _measure_perplexity,
    "needles": _measure_needles,
    "allocation": _measure_allocation,
}
