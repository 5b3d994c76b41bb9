"""New texts through a trained classifier: what ``antiphase predict`` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from transformers import AutoModelForSequenceClassification, PreTrainedModel

from antiphase.data.classification import read_texts
from antiphase.data.text_batches import encode
from antiphase.data.tokenization import load_tokenizer
from antiphase.errors import InputError
from antiphase.evals.classification import class_probabilities
from antiphase.evals.loading import loading, read_weights, refused_by_model
from antiphase.folders.held import check_empty, make_folder
from antiphase.records import Record, finite
from antiphase.studies.kept_runs import check_lengths
from antiphase.training.loop import choose_device


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """What ``antiphase predict`` was asked for."""

    name: str
    """Folder of ``antiphase classify`` or of one of its runs, or any text classifier of Hugging Face."""
    texts: Sequence[str] = ()
    files: Sequence[str] = ()
    text_field: str | None = None
    device: str = "auto"


def predict(request: PredictRequest, output: Path | None = None) -> Record:
    """The probability of each label for each text; with ``output`` the record is saved there.

    Raises:
        InputError: a folder without a classifier, no text, a file that cannot be read, a text longer than the model's
            positions (file and line are named), or a folder that is not empty.
    """
    if not request.texts and not request.files:
        raise InputError("--text or --file is missing: what is to be classified?")
    if output is not None:
        check_empty(output)
    given: list[tuple[str, str]] = []
    for number, text in enumerate(request.texts, start=1):
        place = "--text" if len(request.texts) == 1 else f"--text ({number})"
        if any("\ud800" <= letter <= "\udfff" for letter in text):  # bytes of a shell that are not UTF-8
            raise InputError(f"{place} is not valid Unicode; write it in UTF-8")
        given.append((place, text))
    for file in request.files:
        given += read_texts(file, text_field=request.text_field)
    model = _load(request.name).to(choose_device(request.device)).eval()
    texts = encode(load_tokenizer(request.name, flag="RUN"), [text for _, text in given])
    check_lengths(texts, [place for place, _ in given], model, remedy="shorten it")
    with refused_by_model(request.name, flag="RUN"):
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
    record = Record(kind="predict", values=finite({"model": request.name, "rows": rows}), config=asdict(request))
    if output is not None:
        make_folder(output)
        record.save(output)
    return record


def _load(name: str) -> PreTrainedModel:
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise InputError(f"RUN {name}: this folder holds no model (config.json is missing); give a finished run")
    with loading(f"RUN {name}: no text classifier could be loaded"):
        return read_weights(AutoModelForSequenceClassification, name, flag="RUN", whole="trained classifier")
