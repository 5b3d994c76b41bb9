"""Implements ``antiphase predict``: new texts, classified or translated by a trained model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import (
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from antiphase.base.errors import InputError, named
from antiphase.base.folders.contents import check_loaded
from antiphase.base.folders.ownership import check_empty, new_folder
from antiphase.base.records import Record, finite
from antiphase.lab.lineage.commands.predict import PredictSettings
from antiphase.lab.lineage.data.labelled_texts import read_texts
from antiphase.lab.lineage.data.text_batches import EncodedTexts, encode, unknown_words
from antiphase.lab.lineage.finished_runs import check_lengths
from antiphase.lab.lineage.scoring.classification import class_probabilities
from antiphase.lab.lineage.scoring.translation import written_texts
from antiphase.lab.scoring.loading import refused_by_model
from antiphase.lab.settings.naming import naming
from antiphase.lab.training.device import choose_device
from antiphase.models.sources.models import read_model


def predict(
    request: PredictSettings,
    output: Path | None = None,
    *,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[float, int], None] = lambda done, count: None,
) -> Record:
    """The probability of each label for each text, or its translation; with ``output``, the record is saved there.

    Raises:
        InputError: the folder has no classifier or translator, there is no text, a file cannot be read, a text is
            longer than the model's positions (the message names file and line), or the output folder is not empty.
    """
    request.check()
    if output is not None:
        check_empty(output)
    given: list[tuple[str, str]] = []
    for number, text in enumerate(request.texts, start=1):
        place = "--text" if len(request.texts) == 1 else f"--text ({number})"
        if any("\ud800" <= letter <= "\udfff" for letter in text):  # bytes from the shell that are not UTF-8
            raise InputError(f"{place} is not valid Unicode; write it in UTF-8")
        given.append((place, text))
    for file in request.files:
        with naming({"split": "--file as FILE@PART"}):
            given += read_texts(file, text_field=request.text_field)
    model, tokenizer = read_model(
        request.name,
        lambda config: AutoModelForSeq2SeqLM if is_translator(config) else AutoModelForSequenceClassification,
        field="run",
        kind="text classifier or translator",
        whole="trained classifier or translator",
    )
    check_loaded(request.name, "run")
    if not (writes := is_translator(model.config)) and not chooses_one_label(model.config):
        raise InputError(
            f"{named('run', request.name)}: this model does not choose one label of several; give a classifier that "
            "does"
        )
    model = model.to(choose_device(request.device)).eval()
    texts = encode(tokenizer, [text for _, text in given])
    check_lengths(texts, [place for place, _ in given], model, remedy="shorten it")
    with refused_by_model(request.name, field="run"):
        found = translated(model, tokenizer, texts) if writes else classified(model, texts)
    rows = [
        {"text": text, "unknown": unknown_words(tokenizer, text)} | one
        for (_, text), one in zip(given, found, strict=True)
    ]
    record = Record(kind="predict", values=finite({"model": request.name, "rows": rows}), config={**asdict(request)})
    if output is not None:
        with new_folder(output):
            record.save(output)
    return record


def is_translator(config: PreTrainedConfig) -> bool:
    """Whether a model of this configuration writes texts for others; one that reads with both halves may classify."""
    writer = AutoModelForSeq2SeqLM._model_mapping.get(type(config), None)
    return writer is not None and writer.__name__ in (config.architectures or [])


def chooses_one_label(config: PreTrainedConfig) -> bool:
    """Whether a classifier gives each of several labels a probability, which add up to 1."""
    return config.num_labels >= 2 and config.problem_type != "multi_label_classification"


def translated(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: EncodedTexts) -> list[dict[str, Any]]:
    """The translation of each text."""
    return [{"translation": text} for text in written_texts(model, tokenizer, texts)]


def classified(model: PreTrainedModel, texts: EncodedTexts) -> list[dict[str, Any]]:
    """The most likely label of each text, and the probability of each label."""
    labels = [model.config.id2label[number] for number in range(model.config.num_labels)]
    return [
        {
            "label": labels[max(range(len(labels)), key=shares.__getitem__)],
            "probabilities": dict(zip(labels, shares, strict=True)),
        }
        for shares in class_probabilities(model, texts).tolist()
    ]
