"""Implements ``antiphase look``: attention of every layer and head on one text, from request to record."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antiphase.base.errors import renamed
from antiphase.base.files import read_json, read_text, text_of_input
from antiphase.base.folders.ownership import new_folder
from antiphase.base.records import GIVE_A_RUN, Record
from antiphase.lab.measures.look import LearningCurve, LookSettings
from antiphase.lab.measures.look.maps import maps_of
from antiphase.lab.measures.look.texts import Reader
from antiphase.lab.scoring.loading import load_model, openings_of, origins, read_without_weights
from antiphase.lab.training.device import loading_options

LONGEST_NAME = 256
"""Letters of a text that may be the name of a file."""


def evaluate(
    request: LookSettings,
    output: Path,
    *,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[float, int], None] = lambda done, count: None,
) -> Record:
    """Compute every map of every layer on the text, as ``antiphase.look`` does; write ``record.json`` in ``output``.

    ``values["maps"]`` lists the layers; each names its sequences of queries and keys, its mask and its arrays
    (``Maps.result``).

    Raises:
        InputError: the model or text cannot be used, attention cannot be observed, or the folder is not empty.
    """
    request.check()
    started = time.perf_counter()
    text = text_of(request, say)
    with new_folder(output), renamed({"text": "text" if request.text_file is None else "text_file"}):
        runs = _runs_of(Path(request.name))  # before anything that takes time
        config, tokenizer = read_without_weights(request.name)
        span = request.span()
        size: dict[str, Any] = {"length": request.length, "truncate": request.truncate}
        reader = Reader(name=request.name, tokenizer=tokenizer, **size)
        reader.check(
            {"text": text, "text_target": request.target}, is_pair=bool(getattr(config, "is_encoder_decoder", False))
        )
        loaded = load_model(request.name, **loading_options(request), with_head=False)
        maps = maps_of(loaded, text, request.target, queries=span.get("queries"), keys=span.get("keys"), **size)
        result, arrays = maps.result(runs)
        read = {**origins([loaded]), **openings_of(loaded)}
        return result.save(output, request, arrays, seconds=time.perf_counter() - started, **read)


def text_of(request: LookSettings, say: Callable[[str], None] = lambda message: None) -> str:
    """The text to look at.

    Raises:
        InputError: its file cannot be read.
    """
    if request.text_file == "-":
        return text_of_input("text_file", "pipe a text into the command")
    if request.text_file is not None:
        return read_text(request.text_file, "text_file", "give a file of text")
    assert request.text is not None
    if len(request.text) < LONGEST_NAME and Path(request.text).is_file():
        say(f"--text is the name of a file and looked at as it stands; for its content give --text-file {request.text}")
    return request.text


def _runs_of(folder: Path) -> list[LearningCurve]:
    """The learning curve of a model that was trained here."""
    if not (folder / "record.json").is_file():
        return []
    if not {"kind", "values", "format"} <= read_json(folder / "record.json", "", GIVE_A_RUN).keys():
        return []  # somebody else's file
    trained = Record.load(folder)
    if trained.kind in ("classify", "translate"):
        runs = trained.values["runs"]
        best = trained.values.get("best", runs[0]["folder"])  # the best run's model, for the folder of a study
        return [
            LearningCurve(arm=run["model"], seed=run["seed"], curve=run["curve"])
            for run in runs
            if run["folder"] == best
        ]
    name = trained.values.get("arm") or trained.config.get("model", {}).get("attention_type") or "model"
    seed = trained.seeds[0] if trained.seeds else None
    curve = LearningCurve(arm=name, seed=seed, curve=trained.values.get("curve") or [])
    return [curve] if trained.kind == "train" else []
