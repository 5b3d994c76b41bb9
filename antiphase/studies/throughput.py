"""Training tokens per second against sequence length: ``antiphase study throughput``.

A training step (forward, backward, Adam) of every model of the line on the same number of tokens, in sequences of
growing length. The models take turns, so that a slow moment of the machine meets all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from antiphase.benchmarks.timing import Work, paired_times, ratios
from antiphase.data.agreement import LABELS, words
from antiphase.data.vocabularies import train_words
from antiphase.errors import InputError
from antiphase.folders.held import new_folder
from antiphase.models.classic_configs import VanillaConfig
from antiphase.randomness import keyed_generator
from antiphase.records import Record, finite
from antiphase.studies.classifiers import Classifier, chosen_classifiers
from antiphase.studies.line import ORDER, line
from antiphase.training.loop import choose_device

BASELINE = "transformer"
"""What times are divided by, where it is among the models; else the first of them."""
QUICK: dict[str, Any] = {"lengths": (32, 128, 512), "rounds": 5, "seconds": 4.0}
"""In the place of the defaults under ``--quick``."""


@dataclass(frozen=True, kw_only=True)
class ThroughputRequest:
    """What ``antiphase study throughput`` was asked for."""

    models: Sequence[str] = ORDER
    lengths: Sequence[int] = (32, 64, 128, 256, 512, 1024, 2048)
    """Tokens of a sequence."""
    tokens: int = 4096
    """Tokens of a step; the sequences are as many as they fill."""
    rounds: int = 15
    """At each length, at the most."""
    seconds: float = 45.0
    """At each length, after which no further round begins, but for the first three."""
    seed: int = 0
    settings: Sequence[str] = ()
    device: str = "auto"

    def check(self) -> dict[str, Classifier]:
        """The models asked for, with positions for the longest sequence.

        Raises:
            InputError: a value out of range; it names the flag.
        """
        if not self.lengths or len(set(self.lengths)) < len(self.lengths) or min(self.lengths) < 1:
            raise InputError(
                f"--lengths must be different whole numbers from 1, got {', '.join(map(str, self.lengths))}"
            )
        if self.tokens < max(self.lengths):
            raise InputError(f"--tokens must be at least {max(self.lengths)}, the longest sequence; got {self.tokens}")
        if self.rounds < 1:
            raise InputError(f"--rounds must be at least 1, got {self.rounds}")
        chosen = chosen_classifiers(self.models, self.settings, known=line(), flag="--models")
        longest = {"max_position_embeddings": max(self.lengths)}
        return {
            name: replace(one, sizes={**one.sizes, **longest}) if one.config is VanillaConfig else one
            for name, one in chosen.items()
        }


def throughput(
    request: ThroughputRequest,
    output: Path,
    *,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[int, int], None] = lambda done, count: None,
) -> Record:
    """Time every model at every length. Writes ``record.json`` in ``output``.

    ``values["speeds"]`` has the median seconds of a step and the tokens per second; ``values["rows"]`` each model's
    time over the baseline's, the median over rounds and its quartiles: above 1 the model is slower.

    Raises:
        InputError: settings that cannot be used, or a folder that is not empty.
    """
    classifiers = request.check()
    started = time.perf_counter()
    device = choose_device(request.device)
    baseline = BASELINE if BASELINE in classifiers else next(iter(classifiers))
    with new_folder(output):
        tokenizer = train_words([" ".join(words())], len(words()) + 2)
        models = {
            name: one.build(tokenizer, LABELS, seed=request.seed).to(device).train()
            for name, one in classifiers.items()
        }
        speeds: list[dict[str, Any]] = []
        rows: list[dict[str, Any]] = []
        for done, length in enumerate(request.lengths, start=1):
            say(f"timing {length:,} tokens a sequence")
            work = {name: training_step(model, length, request, classifiers[name]) for name, model in models.items()}
            times = paired_times(work, rounds=request.rounds, seconds=request.seconds)
            speeds += _speeds(times, length, request.tokens // length * length)
            rows += [{"length": length, **ratios(times, name, baseline)} for name in models if name != baseline]
            report(done, len(request.lengths))
        record = Record(
            kind="study-throughput",
            values=finite({
                "models": list(models),
                "baseline": baseline,
                "parameters": {name: model.num_parameters() for name, model in models.items()},
                "speeds": speeds,
                "rows": rows,
            }),
            config=finite({**asdict(request), "classifiers": {n: one.settings() for n, one in classifiers.items()}}),
            seeds=[request.seed],
            seconds=time.perf_counter() - started,
        )  # fmt: skip
        record.save(output)
    return record


def training_step(model: PreTrainedModel, length: int, request: ThroughputRequest, classifier: Classifier) -> Work:
    """One step on random words, without padding; what the model runs on is waited for."""
    generator = keyed_generator(request.seed, "throughput", length)
    count = request.tokens // length
    special = 2  # padding and unknown words
    ids = torch.randint(special, model.config.vocab_size, (count, length), generator=generator).to(model.device)
    labels = torch.randint(len(LABELS), (count,), generator=generator).to(model.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=classifier.training.learning_rate, fused=True)

    def run() -> object:
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        return loss

    return run


def _speeds(times: Mapping[str, list[float]], length: int, tokens: int) -> list[dict[str, Any]]:
    found = []
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [middle] * 3
        found.append({
            "model": name,
            "length": length,
            "seconds": middle,
            "tokens_per_second": tokens / middle,
            "quartiles": [tokens / quartiles[2], tokens / quartiles[0]],
            "rounds": len(seconds),
        })  # fmt: skip
    return found
