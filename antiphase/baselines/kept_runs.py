"""Runs of a study one after the other, each with a folder that appears when it is finished and is not made twice."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.baselines.data.text_batches import EncodedTexts
from antiphase.errors import InputError
from antiphase.records import Record, finite, write_atomically
from antiphase.studies.request_file import REQUEST
from antiphase.training.run_folder import check_model, keep_model


def remember(request: Any, content: Any, output: Path, *, words: str) -> None:
    """Keep what is worked on, or refuse to go on with other texts.

    Args:
        request: a dataclass.
        content: the texts, as JSON takes them; ``words`` is what they are called.

    Raises:
        InputError: the texts changed since the work began.
    """
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    path = output / REQUEST
    if not path.is_file():
        tree = {"request": finite(asdict(request)), "content": digest}
        write_atomically(path, (json.dumps(tree, indent=1) + "\n").encode())
    elif json.loads(path.read_text("utf-8"))["content"] != digest:
        raise InputError(f"--output {output}: {words} have changed since this work began; choose another")


def each_run(
    folders: Sequence[str],
    output: Path,
    make: Callable[[int, Callable[[int, int], None]], dict[str, Any]],
    *,
    say: Callable[[str], None],
    sentence: Callable[[dict[str, Any]], str],
    report: Callable[[float, int], None],
) -> list[dict[str, Any]]:
    """What there is to say of each run; those with a folder are read from it.

    Args:
        make: called with the run's number and with what to call after its steps (done, most).

    Raises:
        InputError: a finished run's folder holds another model by now.
    """
    found: list[dict[str, Any]] = []
    for number, folder in enumerate(folders):
        if (output / folder / "record.json").is_file():
            check_model(output / folder)
            run = Record.load(output / folder).values["runs"][0]
        else:

            def steps(done: int, most: int, begun: int = number) -> None:
                report(begun + done / most, len(folders))

            run = make(number, steps)
        found.append(run)
        report(len(found), len(folders))
        say(sentence(run))
    return found


def keep_run(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, record: Record, place: Path) -> None:
    """The run's folder with model, tokenizer and record, written beside and then renamed."""
    beside = place.with_name(f".{place.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)  # of a killed run
    model.save_pretrained(beside)
    tokenizer.save_pretrained(beside)
    keep_model(beside)
    record.save(beside)
    beside.rename(place)


def check_lengths(texts: EncodedTexts, places: Sequence[str], model: PreTrainedModel, *, remedy: str) -> None:
    """Raise an InputError for a text with more tokens than the model has positions; it names its place."""
    positions = getattr(model.config, "max_position_embeddings", None)
    for ids, place in zip(texts.ids, places, strict=True):
        if positions is not None and len(ids) > positions:
            longest = max(map(len, texts.ids))
            raise InputError(
                f"{place}: the text has {len(ids)} tokens, more than the {positions} positions of the model; "
                f"{remedy.format(longest=longest)}"
            )
