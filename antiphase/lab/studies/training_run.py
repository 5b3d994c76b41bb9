"""One training run, from settings to record: what ``antiphase train`` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torch.distributed import is_torchelastic_launched
from transformers import PreTrainedModel

from antiphase.base.folders.ownership import only_one, undone_if_refused
from antiphase.base.randomness import keyed_generator
from antiphase.base.records import Record
from antiphase.lab.scoring.division import Divide
from antiphase.lab.scoring.needles import first_query_accuracy
from antiphase.lab.scoring.perplexity import perplexity
from antiphase.lab.settings.presets import RunSettings
from antiphase.lab.studies.started import check_unseen
from antiphase.lab.text.prepare import PreparedData, prepare
from antiphase.lab.training.checkpoint import checkpoints
from antiphase.lab.training.distributed import is_first_process, is_restarted
from antiphase.lab.training.loop import PAGE_ACCURACY, Evaluation, Reporter, train
from antiphase.lab.training.run_folder import check_diverged, check_run
from antiphase.lab.training.run_model import check_settings


def curve_evaluations(settings: RunSettings, data: PreparedData) -> dict[str, Evaluation]:
    """First-query accuracy and held-out loss, on sequences that are the same at every step and in every arm."""
    held_out = data.task().sample(settings.evaluation.curve_samples, keyed_generator("curve"))
    batch = data.validation(settings.evaluation.validation_sequences)

    def retrieval(model: PreTrainedModel, divide: Divide) -> Mapping[str, float]:
        return {"accuracy": first_query_accuracy(model, held_out, divide)}

    def loss(model: PreTrainedModel, divide: Divide) -> Mapping[str, float]:
        return {"loss": perplexity(model, batch, divide=divide)["loss"]}

    return {"retrieval": retrieval, "loss": loss}


def page_evaluations(settings: RunSettings, data: PreparedData) -> dict[int, Evaluation]:
    """First-query accuracy in held-out retrieval sequences of each length below that of a row."""

    def at(length: int) -> Evaluation:
        trained = data.training_task().of_length(length)
        task = data.task(needles=trained.needles, queries=trained.queries, sequence_length=length)
        held_out = task.sample(settings.evaluation.curve_samples, keyed_generator("curve", length))
        return lambda model, divide: {PAGE_ACCURACY: first_query_accuracy(model, held_out, divide)}

    return {length: at(length) for length in settings.data.lengths[:-1]}


def train_run(
    settings: RunSettings,
    output: Path,
    *,
    resume: bool,
    report: Reporter = lambda step, values: None,
    say: Callable[[str], None] = lambda message: None,
) -> Record:
    """Prepare the data of a run, train it, and return its record."""
    resume = resume or is_restarted()
    check_run(output, settings, resume=resume)  # a folder of something else gets no lock
    with only_one(output) if is_first_process() else nullcontext():
        check_run(output, settings, resume=resume)
        check_diverged(output)
        check_unseen(settings)
        with _undone(_beside(output)):
            data = prepare(settings.data, _beside(output), progress=say)
            check_settings(settings, data.tokenizer, begins=not checkpoints(output))
        return train(
            settings, data, output, evaluations=curve_evaluations(settings, data),
            page_evaluations=page_evaluations(settings, data), resume=resume, report=report, say=say,
        )  # fmt: skip


def _beside(output: Path) -> Path:
    """Where a single run keeps its tokens: next to its folder, which has to be new when training starts."""
    return output.parent / f"{output.name}-tokens"


def _undone(folder: Path) -> AbstractContextManager[None]:
    """``undone_if_refused``, except that of several processes none may remove what another reads."""
    return nullcontext() if is_torchelastic_launched() else undone_if_refused(folder)
