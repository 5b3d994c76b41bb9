"""One run or one measurement, from settings to record: what ``antiphase train`` and ``antiphase evaluate`` do."""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed import is_torchelastic_launched
from transformers import AutoModelForCausalLM, PreTrainedModel

from antiphase.config import DataSettings, RunSettings
from antiphase.data.packing import pack
from antiphase.data.prepare import PreparedData, check_task, prepare
from antiphase.errors import InputError, naming
from antiphase.evals.cancellation import cancellation
from antiphase.evals.loading import LoadedModel, load_model, refused_by_model
from antiphase.evals.long_context import long_context
from antiphase.evals.needles import first_query_accuracy
from antiphase.evals.outliers import outliers
from antiphase.evals.perplexity import perplexity
from antiphase.evals.quantization import GRANULARITIES, quantized_logits
from antiphase.evals.scoring import negative_log_likelihoods
from antiphase.evals.statistics import wilson_interval
from antiphase.evals.weights import check_weights, quantized_weights
from antiphase.randomness import keyed_generator
from antiphase.records import Record, finite
from antiphase.studies.journal import JOURNAL, Journal, inputs_of, model_content, text_content
from antiphase.training.checkpoint import has_checkpoint
from antiphase.training.distributed import is_first_process
from antiphase.training.loop import Evaluation, LanguageModel, Reporter, check_settings, choose_device, train_held
from antiphase.training.run_folder import (
    check_diverged,
    check_empty,
    check_run,
    is_same_content,
    only_one,
    undone_if_refused,
)

FLAGS = {"data.sequence_length": "--length", "data.needles": "--needles", "data.queries": "--queries"}
"""Fields of a preset that ``antiphase evaluate`` has flags for."""
FOREIGN_LENGTH = 512
"""Tokens in a sequence for a model that was not trained here, unless ``--length`` says otherwise."""


def curve_evaluations(settings: RunSettings, data: PreparedData) -> dict[str, Evaluation]:
    """First-query accuracy and held-out loss, on sequences that are the same at every step and in every arm."""
    held_out = data.task().sample(settings.evaluation.curve_samples, keyed_generator("curve"))
    batch = data.validation(settings.evaluation.validation_sequences)

    def retrieval(model: LanguageModel) -> Mapping[str, float]:
        return {"accuracy": first_query_accuracy(model, held_out)}

    def loss(model: LanguageModel) -> Mapping[str, float]:
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
    check_run(output, settings, resume=resume)  # a folder of something else gets no lock
    with only_one(output) if is_first_process() else nullcontext():
        check_run(output, settings, resume=resume)
        check_diverged(output)
        with _undone(_beside(output)):
            data = prepare(settings.data, _beside(output), progress=say)
            check_settings(settings, data.tokenizer, begins=not has_checkpoint(output))
        evaluations = curve_evaluations(settings, data)
        return train_held(settings, data, output, evaluations=evaluations, resume=resume, report=report)


def _beside(output: Path) -> Path:
    """Where a single run keeps its tokens: next to its folder, which has to be new when training starts."""
    return output.parent / f"{output.name}-tokens"


def _undone(folder: Path) -> AbstractContextManager[None]:
    """``undone_if_refused``, but of several processes none may take away what another reads."""
    return nullcontext() if is_torchelastic_launched() else undone_if_refused(folder)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What ``antiphase evaluate`` was asked for. None or empty sizes: those of the model's training, or defaults."""

    measurement: str
    """One of ``_MEASUREMENTS``."""
    name: str
    """Local folder or Hub name of any causal language model."""
    paths: Sequence[str] = ()
    """Held-out text (``--data``); may be empty for a model trained here, whose own held-out data is used."""
    text_field: str | None = None
    length: int | None = None
    needles: Sequence[int] = ()
    queries: Sequence[int] = ()
    depths: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0)
    samples: int = 200
    bits: Sequence[int] = (16, 8, 6, 4)
    granularity: str = "head"
    weights: Sequence[int] = ()
    """Bits of the weights of linear layers, for quantization."""
    seed: int = 0
    device: str = "auto"

    def check(self) -> None:
        """
        Raises:
            InputError: a size out of range, or named twice; it names the flag.
        """
        least = {"--samples": (1, [self.samples]), "--needles": (1, self.needles), "--queries": (1, self.queries)}
        for flag, (bound, given) in {**least, "--length": (2, [self.length])}.items():
            if any(number is not None and number < bound for number in given):
                raise InputError(f"{flag} must be at least {bound}, got {', '.join(map(str, given))}")
        if self.granularity not in GRANULARITIES:
            raise InputError(f"--granularity must be one of {', '.join(GRANULARITIES)}, got {self.granularity!r}")
        if any(bits < 2 for bits in self.bits):
            raise InputError(f"--bits must be at least 2, got {', '.join(map(str, self.bits))}")
        if any(not 0 <= depth <= 1 for depth in self.depths):
            raise InputError(f"--depths must lie between 0 and 1, got {', '.join(map(str, self.depths))}")
        for bits in self.weights:
            check_weights(bits)
        for flag, listed in (
            ("--needles", self.needles), ("--queries", self.queries), ("--depths", self.depths), ("--bits", self.bits),
            ("--weights", self.weights),
        ):  # fmt: skip
            if len(set(listed)) != len(listed):
                raise InputError(f"{flag} must not name a value twice, got {', '.join(map(str, listed))}")


def evaluate(
    request: Request,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
) -> Record:
    """Measure one model, for cancellation beside the same architecture untrained.

    Writes ``record.json`` in ``output``; with ``resume``, one that is there already is returned.

    Raises:
        InputError: a model, text or size that cannot be used, or an output folder with other contents.
    """
    request.check()
    started = time.perf_counter()

    def inputs() -> dict[str, Any]:
        text = text_content(request.name, request.paths, request.text_field)
        return inputs_of(request, {"the files of MODEL": model_content(request.name), **text})

    with journal_in(output, inputs, resume=resume) as journal, undone_if_refused(_beside(output)), naming(FLAGS):
        if journal.record is not None:
            return journal.record
        loaded = load_model(request.name, device=str(choose_device(request.device)))
        longest = getattr(loaded.model.config, "max_position_embeddings", None)
        if longest is not None and (request.length or 0) > longest:
            raise InputError(
                f"--length {request.length} is longer than the {longest} positions of {request.name}; shorten it"
            )
        data = data_for(loaded, request, output, say)
        journal.begin()
        say(f"measuring {request.measurement}")
        with refused_by_model(request.name):
            values = _MEASUREMENTS[request.measurement](loaded.model, data, request)
        record = Record(
            kind=f"evaluate-{request.measurement}",
            values=finite({"model": request.name, **values}),
            config=finite({"data": data.settings, **vars(request)}),
            seeds=[request.seed],
            seconds=time.perf_counter() - started,
        )
        record.save(output)
    return record


@contextmanager
def journal_in(output: Path, inputs: Callable[[], Mapping[str, Any]], *, resume: bool) -> Iterator[Journal]:
    """Hold the folder of a measurement: a new one, or with ``resume`` one that holds this very measurement.

    Raises:
        InputError: it holds something else, or is in use.
    """
    if not (output / JOURNAL).is_file():
        check_empty(output)
    elif not resume:
        raise InputError(
            f"--output {output} exists and is not empty; add --resume to go on with what it holds, or choose another "
            "folder"
        )
    with only_one(output), undone_if_refused(output):
        yield Journal(output, inputs)


def once(
    output: Path, inputs: Callable[[], Mapping[str, Any]], measure: Callable[[Path], Record], *, resume: bool
) -> Record:
    """The record of a measurement that a stop begins afresh: made in a folder inside, until it is whole.

    Raises:
        InputError: what ``measure`` refuses, or an output folder with other contents.
    """
    with journal_in(output, inputs, resume=resume) as journal:
        if journal.record is not None:
            return journal.record
        journal.begin()
        unfinished = output / ".unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        record = measure(unfinished)
        (unfinished / "record.json").replace(output / "record.json")
        shutil.rmtree(unfinished)
    return record


def data_for(loaded: LoadedModel, request: Request, output: Path, say: Callable[[str], None]) -> PreparedData:
    """Held-out data: the given text, or what the model's own run held out."""
    longest = getattr(loaded.model.config, "max_position_embeddings", None) or FOREIGN_LENGTH
    unknown = DataSettings(source="text", sequence_length=min(FOREIGN_LENGTH, longest))
    settings = loaded.settings.data if loaded.settings else unknown
    settings = replace(
        settings,
        sequence_length=request.length or settings.sequence_length,
        needles=request.needles[0] if request.needles else settings.needles,
        queries=request.queries[0] if request.queries else settings.queries,
    )
    if request.paths and loaded.settings is not None and settings.source == "synthetic":
        raise InputError(f"--data has no use here: {loaded.name} knows the words of the synthetic task only")
    if not request.paths and loaded.settings is None:
        raise InputError(f"--data is missing: {loaded.name} was not trained here, so it needs held-out text")
    if not request.paths:
        tokenizer = settings.tokenizer if settings.source == "synthetic" else loaded.name
        kept = settings.cache is not None and Path(settings.cache).is_dir()  # a run may have been moved
        cache = settings.cache if kept else None
        data = prepare(replace(settings, tokenizer=tokenizer, cache=cache), _beside(output), progress=say)
        if data.content is not None and not is_same_content(Path(loaded.name), data.content):
            raise InputError(
                f"the text that {loaded.name} was trained on, or the wording of its tasks, has changed since, so what "
                "it held out is not known any more; give held-out text with --data"
            )
        return data
    paths, text_field = list(request.paths), request.text_field
    settings = replace(settings, source="text", paths=[], validation=paths, text_field=text_field)
    say("packing the text into tokens")
    packed = pack(
        paths, loaded.tokenizer, sequence_length=settings.sequence_length, text_field=text_field, cache=_beside(output)
    )
    return PreparedData(settings, loaded.tokenizer, None, packed)


def _measure_perplexity(model: PreTrainedModel, data: PreparedData, request: Request) -> dict[str, Any]:
    held_out = data.validation(request.samples)  # fewer, where the text has fewer
    return {"rows": [{"sequences": len(held_out.input_ids), **perplexity(model, held_out)}]}


def _measure_cancellation(model: PreTrainedModel, data: PreparedData, request: Request) -> dict[str, Any]:
    task = data.task(
        needles=request.needles[0] if request.needles else None, queries=request.queries[0] if request.queries else None
    )
    check_task(task)
    batch = task.sample(request.samples, keyed_generator(request.seed, "cancellation"))
    found: dict[str, Any] = {"heads": [], "layers": []}
    for measured, trained in ((model, True), (untrained(model, request.seed), False)):
        for part, rows in cancellation(measured, batch).items():
            found[part] += [{"trained": trained, **row} for row in rows]
    kind = getattr(model.config, "attention_type", None)
    return {"attention_type": kind, "samples": request.samples, "length": batch.input_ids.shape[1], **found}


def _measure_long_context(model: PreTrainedModel, data: PreparedData, request: Request) -> dict[str, Any]:
    windows = data.validation(request.samples).input_ids

    def bytes_of(ids: torch.Tensor) -> int:
        return len(data.tokenizer.decode(ids, skip_special_tokens=True).encode())

    return long_context(model, windows, bytes_of=None if data.validation_text is None else bytes_of)


def _measure_outliers(model: PreTrainedModel, data: PreparedData, request: Request) -> dict[str, Any]:
    windows = data.validation(request.samples).input_ids
    return {"sequences": len(windows), "rows": outliers(model, windows)}


def _measure_quantization(model: PreTrainedModel, data: PreparedData, request: Request) -> dict[str, Any]:
    """Loss and retrieval with attention logits, or the weights of linear layers, in few bits, beside all bits."""
    held_out = data.validation(request.samples)
    task = data.task(
        needles=request.needles[0] if request.needles else None, queries=request.queries[0] if request.queries else None
    )
    check_task(task)
    batch = task.sample(request.samples, keyed_generator(request.seed, "quantization"))

    def measured(model: PreTrainedModel) -> dict[str, Any]:
        losses = negative_log_likelihoods(model, held_out.input_ids, held_out.labels)
        right = round(first_query_accuracy(model, batch) * request.samples)
        interval = list(wilson_interval(right, request.samples))
        return {"loss": float(losses.double().mean()), "retrieval": right / request.samples, "interval": interval}

    rows: list[dict[str, Any]] = []
    for bits in (None, *request.bits):
        block = nullcontext() if bits is None else quantized_logits(model, bits, granularity=request.granularity)  # type: ignore[arg-type]
        with block:
            rows.append({"bits": bits, **measured(model)})
    weights = []
    for bits in request.weights:
        few = quantized_weights(model, bits)
        weights.append({"bits": bits, "share": few.share, "groups": list(few.groups), **measured(few.model)})
    return {
        "granularity": request.granularity, "guess_rate": task.guess_rate, "samples": request.samples,
        "sequences": len(held_out.input_ids), "rows": rows,
        "weights": weights,
    }  # fmt: skip


def untrained(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """The same architecture with fresh weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = AutoModelForCausalLM.from_config(copy.deepcopy(model.config))
    return fresh.to(model.device, model.dtype).eval()


_MEASUREMENTS: dict[str, Callable[[PreTrainedModel, PreparedData, Request], dict[str, Any]]] = {
    "perplexity": _measure_perplexity,
    "cancellation": _measure_cancellation,
    "long-context": _measure_long_context,
    "outliers": _measure_outliers,
    "quantization": _measure_quantization,
}
