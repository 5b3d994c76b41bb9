"""Stage ``prepare`` of ``gpu_hour.py``: writes everything that the other stages read to one small folder.

The folder has the text twice: packed as 16-bit tokens for training, and as compressed documents, whose content
identifies the tokens.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
from gpu_hour_stage import Stage
from gpu_hour_training import settings_of

from antiphase.data.corpora import documents
from antiphase.data.prepare import prepare
from antiphase.errors import InputError
from antiphase.records import write_atomically

MOST_BYTES = 50_000_000
"""Largest size of the folder; with the repository it stays below 60 MB."""


def prepare_data(
    stage: Stage, *, data: Sequence[str], validation: Sequence[str], trec: Path, clinc: Path, overrides: Sequence[str]
) -> int:
    """Write texts, tokens, tokenizer and tasks, unless they exist already.

    Args:
        data, validation: text as for ``antiphase train``.
        trec: folder with train.txt and test.txt, ``COARSE:fine question`` per line.
        clinc: CLINC-150's JSON file.

    Raises:
        InputError: a file cannot be read, or there is too much text.
    """
    stage.data.mkdir(parents=True, exist_ok=True)
    for part, paths, flag in (("train", data, "--data"), ("validation", validation, "--validation")):
        if not paths:
            raise InputError(f"{flag} is missing: text to {'train on' if part == 'train' else 'hold out'}")
        table = pyarrow.table({"text": list(documents(paths, flag=flag))})
        temporary = stage.data / f".{part}.parquet.tmp"
        pyarrow.parquet.write_table(table, temporary, compression="zstd", compression_level=19)
        temporary.replace(stage.data / f"{part}.parquet")
    _tasks(stage.data / "tasks", trec, clinc)
    run = settings_of(stage, overrides).run
    found = prepare(run.data, stage.data / "tokens", progress=stage.say)
    assert found.training_text is not None
    assert found.validation_text is not None
    size = sum(path.stat().st_size for path in stage.data.rglob("*") if path.is_file())
    stage.say(
        f"{len(found.training_text.tokens):,} tokens to train on, {len(found.validation_text.tokens):,} held out; "
        f"{size / 1e6:.1f} MB in {stage.data}"
    )
    if size > MOST_BYTES:
        raise InputError(
            f"--data: {stage.data} has {size / 1e6:.0f} MB, more than the {MOST_BYTES / 1e6:.0f} that can be brought "
            "along; give less text"
        )
    return 0


def _tasks(folder: Path, trec: Path, clinc: Path) -> None:
    """Write both labelled tasks with their data."""
    folder.mkdir(exist_ok=True)
    for path, flag in ((trec / "train.txt", "--trec"), (trec / "test.txt", "--trec"), (clinc, "--clinc")):
        if not path.is_file():
            raise InputError(f"{flag}: {path} is missing; give the folder of TREC and the JSON file of CLINC-150")
    for part in ("train", "test"):
        shutil.copyfile(trec / f"{part}.txt", folder / f"trec-{part}.txt")
    shutil.copyfile(clinc, folder / "clinc150.json")
    tasks = {
        "trec": {"template": "trec", "data": "trec-test.txt", "demonstrations": "trec-train.txt"},
        "clinc-150": {"template": "clinc-150", "data": "clinc150.json"},
    }
    for name, settings in tasks.items():
        lines = [f"{key}: {json.dumps(value)}\n" for key, value in {"name": name, **settings}.items()]
        write_atomically(folder / f"{name}.yaml", "".join(lines).encode())
