"""Implements ``antiphase predict``: classification of new texts by a trained model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from transformers import AutoModelForSequenceClassification

from antiphase.base.errors import InputError, named
from antiphase.base.folders.contents import check_loaded
from antiphase.base.folders.ownership import check_empty, new_folder
from antiphase.base.records import Record, finite
from antiphase.lab.lineage.commands.predict import PredictSettings
from antiphase.lab.lineage.data.labelled_texts import read_texts
from antiphase.lab.lineage.data.text_batches import encode
from antiphase.lab.lineage.finished_runs import check_lengths
from antiphase.lab.lineage.scoring.classification import class_probabilities
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
    """The probability of each label for each text; with ``output``, the record is saved there.

    Raises:
        InputError: the folder has no classifier, there is no text, a file cannot be read, a text is longer than the
            model's positions (the message names file and line), or the output folder is not empty.
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
        lambda config: AutoModelForSequenceClassification,
        field="run",
        kind="text classifier",
        whole="trained classifier",
    )
    check_loaded(request.name, "run")
    if model.config.num_labels < 2 or model.config.problem_type == "multi_label_classification":
        raise InputError(
            f"{named('run', request.name)}: this model does not choose one label of several; give a classifier that "
            "does"
        )
    model = model.to(choose_device(request.device)).eval()
    texts = encode(tokenizer, [text for _, text in given])
    check_lengths(texts, [place for place, _ in given], model, remedy="shorten it")
    with refused_by_model(request.name, field="run"):
        found = class_probabilities(model, texts).tolist()
    labels = [model.config.id2label[number] for number in range(model.config.num_labels)]
    rows = [
        {
            "text": text,
            "label": labels[max(range(len(labels)), key=shares.__getitem__)],
            "probabilities": dict(zip(labels, shares, strict=True)),
        }
        for (_, text), shares in zip(given, found, strict=True)
    ]
    record = Record(kind="predict", values=finite({"model": request.name, "rows": rows}), config={**asdict(request)})
    if output is not None:
        with new_folder(output):
            record.save(output)
    return record
