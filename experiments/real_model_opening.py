"""Loss and retrieval of a real model after each token that could open a text, and after none.

    python -m experiments.real_model_opening MODEL --data ../shared/data/essays --output records/real-model

For tokenizers that put nothing before a text, as SmolLM2's. All variants predict the same tokens.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from rich.console import Console

from antiphase.base.records import Record
from antiphase.lab.measures.needles.measure import needles_in_text
from antiphase.lab.scoring.loading import LoadedModel, load_model, origins
from antiphase.lab.scoring.perplexity import perplexity
from antiphase.lab.text.corpora import documents
from antiphase.lab.text.haystacks import encode
from antiphase.lab.text.streams import Batch
from antiphase.lab.text.tokenization import PAGE_OPENING, opening_of_text
from antiphase.ops.shapes import IGNORED_TARGET

NEEDLES, LENGTH = 8, 512


def main() -> None:
    """Measure, and write ``opening.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="as for antiphase evaluate")
    parser.add_argument("--data", action="append", required=True, help="text; repeatable")
    parser.add_argument("--output", type=Path, required=True, help="folder of the record")
    parser.add_argument("--windows", type=int, default=16, help="windows of 256 tokens")
    parser.add_argument("--samples", type=int, default=24, help="contexts with needles")
    given = parser.parse_args()
    started, loaded, console = time.perf_counter(), load_model(given.model), Console(highlight=False)
    if opening_of_text(loaded.tokenizer):
        parser.error(f"the tokenizer of {given.model} opens texts itself")
    texts = list(documents(given.data, field="data"))
    rows = []
    for name, token in (("none", ""), ("bos", loaded.tokenizer.bos_token), ("eos", loaded.tokenizer.eos_token)):
        loaded.tokenizer.init_kwargs[PAGE_OPENING] = token
        found = needles_in_text(
            loaded.model, loaded.tokenizer, texts, needles=[NEEDLES], lengths=[LENGTH], depths=[], samples=given.samples
        )
        right = sum(cell.correct for cell in found.cells if cell.trained)
        loss = loss_after(loaded, token, texts, given.windows)
        rows.append({"opening": name, "token": token, "loss": loss, "correct": right, "samples": given.samples})
        console.print(f"{name} {token!r}: loss {loss:.3f}, {right} of {given.samples} right")
    values = {"model": Path(given.model).name, "windows": given.windows, "needles": NEEDLES, "rows": rows}
    Record(
        kind="opening", values=values, config=origins([loaded]), seconds=time.perf_counter() - started
    ).save(given.output, "opening")  # fmt: skip


def loss_after(loaded: LoadedModel, token: str, texts: list[str], count: int, width: int = 256) -> float:
    """Loss of windows of text after a token, nats per token; the first token of the text is not predicted."""
    ids = torch.tensor(encode(loaded.tokenizer, "\n\n".join(texts)[: 8 * count * width]))[: count * width]
    windows = ids.unflatten(0, (-1, width))
    before = torch.tensor([loaded.tokenizer.convert_tokens_to_ids([token])] if token else [[]], dtype=ids.dtype)
    windows = torch.cat([before.expand(len(windows), -1), windows], dim=1)
    labels = windows.clone()
    labels[:, : before.shape[1] + 1] = IGNORED_TARGET
    return float(perplexity(loaded.model, Batch(windows, labels))["loss"])


if __name__ == "__main__":
    main()
