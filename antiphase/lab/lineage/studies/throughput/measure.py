"""Training tokens per second by sequence length: ``antiphase study throughput``.

It times a training step (forward, backward, Adam) of every model on the same number of tokens, in sequences of
increasing length. The models alternate, so that a slow phase of the machine affects all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from antiphase.base.folders.ownership import new_folder
from antiphase.base.randomness import keyed_generator
from antiphase.base.records import Record
from antiphase.lab.lineage.classifiers import Classifier, chosen_classifiers
from antiphase.lab.lineage.data.agreement import LABELS, words
from antiphase.lab.lineage.data.vocabularies import train_words
from antiphase.lab.lineage.models.configs import VanillaConfig
from antiphase.lab.lineage.one_width import one_width_classifiers
from antiphase.lab.lineage.studies.throughput import Speed, SpeedRatio, Throughput, ThroughputSettings
from antiphase.lab.speed.timing import Work, paired_times, ratios
from antiphase.lab.training.device import choose_device

BASELINE = "transformer"
"""The model that is the baseline if it is selected; else the first model is."""


def throughput(
    request: ThroughputSettings,
    output: Path,
    *,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[int, int], None] = lambda done, count: None,
) -> Record:
    """Time every model at every length; write ``record.json`` in ``output``.

    Raises:
        InputError: the settings cannot be used, or the folder is not empty.
    """
    request.check()
    classifiers = _models(request)
    started = time.perf_counter()
    device = choose_device(request.device)
    baseline = BASELINE if BASELINE in classifiers else next(iter(classifiers))
    with new_folder(output):
        tokenizer = train_words([" ".join(words())], len(words()) + 2)
        models = {
            name: one.build(tokenizer, LABELS, seed=request.seed).to(device).train()
            for name, one in classifiers.items()
        }
        speeds: list[Speed] = []
        rows: list[SpeedRatio] = []
        for done, length in enumerate(request.lengths, start=1):
            say(f"timing {length:,} tokens a sequence")
            work = {name: training_step(model, length, request, classifiers[name]) for name, model in models.items()}
            times = paired_times(work, rounds=request.rounds, seconds=request.seconds)
            speeds += _speeds(times, length, request.tokens // length * length)
            rows += [SpeedRatio(length=length, **ratios(times, name, baseline)) for name in models if name != baseline]
            report(done, len(request.lengths))
        parameters = {name: model.num_parameters() for name, model in models.items()}
        found = Throughput(models=list(models), baseline=baseline, parameters=parameters, speeds=speeds, rows=rows)
        settings = {name: one.settings() for name, one in classifiers.items()}
        return found.save(output, request, seconds=time.perf_counter() - started, classifiers=settings)


def _models(request: ThroughputSettings) -> dict[str, Classifier]:
    """The selected models, with positions for the longest sequence."""
    longest = {"max_position_embeddings": max(request.lengths)}
    ruled = {"max_position_embeddings": "the longest of --lengths"}
    chosen = chosen_classifiers(
        request.models, request.settings, known=one_width_classifiers(), flag="--models", ruled=ruled
    )
    return {
        name: replace(one, sizes={**one.sizes, **longest}) if one.config is VanillaConfig else one
        for name, one in chosen.items()
    }


def training_step(model: PreTrainedModel, length: int, request: ThroughputSettings, classifier: Classifier) -> Work:
    """One step on random words without padding, which waits for the device to finish."""
    generator = keyed_generator(request.seed, "throughput", length)
    count = request.tokens // length
    special = 2  # ids of padding and unknown words
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


def _speeds(times: Mapping[str, list[float]], length: int, tokens: int) -> list[Speed]:
    found = []
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        quartiles = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else [middle] * 3
        found.append(
            Speed(model=name, length=length, seconds=middle, tokens_per_second=tokens / middle,
                  quartiles=[tokens / quartiles[2], tokens / quartiles[0]], rounds=len(seconds))
        )  # fmt: skip
    return found
