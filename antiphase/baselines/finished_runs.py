"""Executes the runs of a study one after the other; each has a folder that is created when it is finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.baselines.data.text_batches import EncodedTexts
from antiphase.errors import InputError, Interrupted
from antiphase.folders.contents import check_model, keep_model
from antiphase.folders.ownership import written_beside
from antiphase.records import Record

Run = TypeVar("Run")


def load_or_run_each(
    runs: Mapping[str, Callable[[str, Callable[[int, int], None]], Run]],
    output: Path,
    *,
    read: Callable[[Record], Run],
    say: Callable[[str], None],
    sentence: Callable[[Run], str],
    report: Callable[[float, int], None],
) -> list[Run]:
    """The result of each run; finished runs are read from their folders.

    Args:
        runs: by the name of its folder, what executes a run; called with that name and a function that reports its
            steps (finished, largest number).
        read: finds the result of a run in the record of its folder.

    Raises:
        InputError: the model in a finished run's folder has changed.
        Interrupted: Ctrl-C was pressed; finished runs are kept.
    """
    found: list[Run] = []
    try:
        for number, (folder, execute) in enumerate(runs.items()):
            if (output / folder / "record.json").is_file():
                check_model(output / folder)
                run = read(Record.load(output / folder))
            else:

                def steps(done: int, most: int, begun: int = number) -> None:
                    report(begun + done / most, len(runs))

                run = execute(folder, steps)
            found.append(run)
            report(len(found), len(runs))
            say(sentence(run))
    except KeyboardInterrupt:
        raise Interrupted("finished runs are kept") from None
    return found


def save_run(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, record: Record, place: Path) -> None:
    """Write the run's folder with model, tokenizer and record atomically."""
    with written_beside(place) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        keep_model(folder)
        record.save(folder)


def check_lengths(texts: EncodedTexts, places: Sequence[str], model: PreTrainedModel, *, remedy: str) -> None:
    """Raise an InputError for a text with more tokens than the model has positions; the message names its place."""
    positions = getattr(model.config, "max_position_embeddings", None)
    for ids, place in zip(texts.ids, places, strict=True):
        if positions is not None and len(ids) > positions:
            longest = max(map(len, texts.ids))
            raise InputError(
                f"{place}: the text has {len(ids)} tokens, more than the {positions} positions of the model; "
                f"{remedy.format(longest=longest)}"
            )
