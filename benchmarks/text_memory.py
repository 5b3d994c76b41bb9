"""Peak memory of training on little and on much text, and the time that tokenization takes.

    python -m benchmarks.text_memory --work runs/text-memory --output records

The text is made up: files of 50 MB of JSON Lines, copied until there is as much as wanted. Each training is an
``antiphase train`` of its own. Its peak memory is the largest resident set, of the process or of one that it started;
it includes Python, torch and the pages of the file of tokens. "prepared" trainings find their tokens in the cache. That
of the large text is written from the tokens of the first file, repeated as often as the file, through the package's own
cache: this gives exactly what tokenization would, in minutes instead of hours. "fresh" trainings train the tokenizer
and tokenize. The record is written again after each training, and the work folder is removed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from antiphase.base.records import Record
from antiphase.lab.text import packing
from antiphase.lab.text.packing import pack
from antiphase.lab.text.token_files import Corpus
from antiphase.models.sources.tokenizers import load_tokenizer

CONSOLE = Console(highlight=False)
FILE = 50_000_000
"""Bytes of one file of text."""
LENGTH = 256
PRESET = f"""\
model: {{hidden_size: 64, num_hidden_layers: 2, intermediate_size: 128, num_attention_heads: 4}}
data: {{sequence_length: {LENGTH}, needles: 2, queries: 1, needle_share: 0.25, vocabulary_size: 2048,
  vocabulary_sample: 5000000, order: keyed}}
training: {{steps: 100, batch_size: 32, warmup_steps: 5, precision: float32, evaluate_every: 50, threads: 1,
  device: cpu}}
evaluation: {{samples: 4, depths: [0.0], validation_sequences: 16, curve_samples: 16}}
"""


def write_text(path: Path) -> None:
    """About ``FILE`` bytes of JSON Lines."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghiklmnoprstuvw", k=draw.randint(2, 9))) for _ in range(20_000)]
    with path.open("w", encoding="utf-8") as file:
        size = 0
        while size < FILE:
            line = json.dumps({"text": " ".join(draw.choices(words, k=draw.randint(50, 600)))}) + "\n"
            file.write(line)
            size += len(line)


def copies(folder: Path, first: Path, count: int) -> str:
    """A folder with so many copies of the file; the text of a real corpus would not repeat, which changes no size."""
    folder.mkdir()
    for number in range(count):
        shutil.copyfile(first, folder / f"{number:04}.jsonl")
    return str(folder)


def prepare_repeated(text: str, count: int, tokenizer: str, cache: Path, first: packing.PackedTokens) -> None:
    """Put the tokens of ``count`` copies of a file into the cache, from the tokens of one."""

    def repeated(data: Path, corpus: Corpus, **unused: object) -> dict[str, Any]:
        with data.open("wb") as file:
            for number in range(count):
                file.write(b"" if number == 0 else np.array([corpus.end], dtype=corpus.kind).tobytes())
                file.write(first.tokens.tobytes())
        tokens = count * (len(first.tokens) + 1) - 1
        return {"tokens": tokens, "documents": 0, "ends": [tokens]}

    original = vars(packing)["write_tokens"]
    vars(packing)["write_tokens"] = repeated
    try:
        pack([text], load_tokenizer(tokenizer), sequence_length=LENGTH, cache=cache)
    finally:
        vars(packing)["write_tokens"] = original


def train(work: Path, name: str, text: str, *settings: str) -> dict[str, Any]:
    """Seconds and peak memory of one training, from the start of its process to its end."""
    load = os.getloadavg()[0]
    started = time.perf_counter()
    command = [sys.executable, "-m", "antiphase", "train", "--preset", str(work / "preset.yaml"), "--data", text]
    command += ["--output", str(work / name), *(word for setting in settings for word in ("--set", setting))]
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{name} ended with status {status}")
    record = Record.load(work / name)
    row = {
        "name": name, "text_bytes": sum(path.stat().st_size for path in Path(text).iterdir()),
        "peak_bytes": usage.ru_maxrss * 1024, "seconds": time.perf_counter() - started,
        "training_seconds": record.values["seconds"], "steps": record.config["training"]["steps"], "load_before": load,
    }  # fmt: skip
    CONSOLE.print(f"{name}: {row['peak_bytes'] / 1e6:.0f} MB, {row['seconds']:.0f} s")
    return row


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="a new folder, removed at the end")
    parser.add_argument("--output", type=Path, required=True, help="folder of the record")
    parser.add_argument("--large", type=int, default=100, help="files of the large text, of 50 MB")
    parser.add_argument("--fresh", type=int, default=10, help="files of the larger text that is tokenized; or 0")
    given = parser.parse_args()
    work: Path = given.work
    work.mkdir(parents=True)
    started = time.perf_counter()
    (work / "preset.yaml").write_text(PRESET, encoding="utf-8")
    (work / "small").mkdir()
    first = work / "small" / "0000.jsonl"
    write_text(first)
    small, cache = str(first.parent), work / "cache"
    rows: list[dict[str, Any]] = []

    def measure(name: str, text: str, *settings: str) -> None:
        rows.append(train(work, name, text, *settings))
        peaks = {row["name"]: row["peak_bytes"] for row in rows}
        ratios = {
            kind: peaks[f"{kind}-large"] / peaks[f"{kind}-small"]
            for kind in ("prepared", "fresh")
            if f"{kind}-large" in peaks
        }
        CONSOLE.print(ratios)
        record = Record(kind="text-memory", values={"rows": rows, "ratios": ratios}, config={"preset": PRESET})
        record.seconds = time.perf_counter() - started
        record.save(given.output, "text-memory")

    measure("fresh-small", small, f"data.cache={cache}")
    (tokenizer,) = map(str, cache.glob("tokenizer-*"))
    known = [f"data.tokenizer={tokenizer}", f"data.cache={cache}"]
    measure("prepared-small", small, *known)
    large = copies(work / "large", first, given.large)
    tokens = pack([small], load_tokenizer(tokenizer), sequence_length=LENGTH, cache=cache)
    prepare_repeated(large, given.large, tokenizer, cache, tokens)
    measure("prepared-large", large, *known)
    shutil.rmtree(large)
    if given.fresh:
        measure("fresh-large", copies(work / "medium", first, given.fresh), f"data.cache={work / 'fresh'}")
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
