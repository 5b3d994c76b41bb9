"""Gradient norms by depth, with norms before or after the sublayers: ``antiphase study gradients``.

Xiong et al. (2002.04745, section 3 and figure 3): with norms after the sublayers, gradients at initialization are large
near the output; with norms before them, they are uniform. Deep models are trained on agreement sentences
(``data/agreement.py``); gradients are measured before training and after some steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.base.errors import InputError
from antiphase.base.folders.journal import journal_in
from antiphase.base.randomness import keyed_generator
from antiphase.base.records import Record
from antiphase.lab.lineage.classifiers import Classifier, chosen_classifiers
from antiphase.lab.lineage.data.agreement import LABELS, agreement_pairs, words
from antiphase.lab.lineage.data.text_batches import encode, shuffled_batches
from antiphase.lab.lineage.data.vocabularies import train_words
from antiphase.lab.lineage.models.configs import NORM_PLACES, ConvolutionConfig, VanillaConfig
from antiphase.lab.lineage.one_width import one_width_classifiers
from antiphase.lab.lineage.studies.gradients import Gradients, GradientsSettings, MeasuredGradients
from antiphase.lab.measures.inputs import inputs_of
from antiphase.lab.measures.parts import Parts
from antiphase.lab.training.device import choose_device
from antiphase.lab.training.run_model import layers_of

DISTANCES = (4, 8, 16)
"""Distances between subject and verb in the sentences."""
PAIRS = 400
"""Number of sentence pairs per distance."""
BATCH = 32
CONSTANT = "no part of the training, which has a constant rate and batches of 32"
RULED = {
    "num_hidden_layers": "the number that --layers gives", "norm": "each of --norms", "norm_position": "each in turn",
    **dict.fromkeys(("warmup_steps", "gradient_norm", "batch_size", "epochs", "patience"), CONSTANT),
}  # fmt: skip
"""Settings that --set cannot change, and what decides them."""
MEASURED = 4
"""Number of batches over which a gradient norm is averaged; they are not used for training."""


def gradients(
    request: GradientsSettings,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[int, int], None] = lambda done, count: None,
) -> Record:
    """Measure every model, norm position and norm with every seed; write ``record.json`` in ``output``.

    Each of these is a part of the work, and ``resume`` continues after the last part that was finished.

    Raises:
        InputError: the settings cannot be used, or the folder has other contents.
    """
    request.check()
    models = _models(request)
    settings = {name: _settings(one) for name, one in models.items()}
    started = time.perf_counter()
    device = choose_device(request.device)
    with journal_in(output, lambda: inputs_of(request, {"the classifiers": settings}), resume=resume) as journal:
        if journal.record is not None:
            return journal.record
        tokenizer = train_words([" ".join(words())], len(words()) + 2)
        forms = [(name, *form) for name, one in models.items() for form in _forms(one, request.norms)]
        measured = training_batches(tokenizer, device, "measured", pairs=MEASURED * BATCH)
        held = [next(measured) for _ in range(MEASURED)]
        journal.begin()
        parts = Parts(journal=journal)
        rows: list[MeasuredGradients] = []
        total, done = len(request.seeds) * len(forms), count(1)
        for seed in request.seeds:
            for name, place, norm, classifier in forms:
                work = partial(_measured, classifier, tokenizer, request.steps, held, seed, device)
                found = parts.stored(name, place, norm, seed, compute=work)
                rows += [MeasuredGradients(model=name, place=place, norm=norm, seed=seed, **row) for row in found]
                report(next(done), total)
        return Gradients(models=list(models), layers=request.layers, rows=rows).save(
            output, request, seconds=time.perf_counter() - started, batch=BATCH, measured_batches=MEASURED,
            distances=DISTANCES, classifiers=settings,
        )  # fmt: skip


def _measured(
    classifier: Classifier,
    tokenizer: PreTrainedTokenizerBase,
    steps: Sequence[int],
    held: Sequence[Batch],
    seed: int,
    device: torch.device,
) -> list[dict[str, Any]]:
    """Train one model, and measure it at each step."""
    model = classifier.build(tokenizer, LABELS, seed=seed).to(device)
    batches = training_batches(tokenizer, device, seed, pairs=PAIRS)
    return [{"step": step, **found} for step, found in train_and_measure(model, classifier, steps, batches, held, seed)]


def _models(request: GradientsSettings) -> dict[str, Classifier]:
    """The selected models with ``layers`` layers."""
    chosen = chosen_classifiers(
        request.models, request.settings, known=one_width_classifiers(), flag="--models", ruled=RULED
    )
    for name, one in chosen.items():
        if one.config is ConvolutionConfig:
            raise InputError(f"--models {name}: a convolutional classifier has one layer, so no depth; remove it")
    deep = {"num_hidden_layers": request.layers}
    return {name: replace(one, sizes={**one.sizes, **deep}) for name, one in chosen.items()}


def _settings(classifier: Classifier) -> dict[str, Any]:
    """What applies to every run of a model, for the record."""
    found = {name: value for name, value in classifier.settings().items() if name not in RULED}
    return {**found, "num_hidden_layers": classifier.sizes["num_hidden_layers"]}


def _forms(classifier: Classifier, norms: Sequence[str]) -> Iterator[tuple[str | None, str | None, Classifier]]:
    """Norm position, norm and model; a recurrent network has neither norm nor position."""
    if classifier.config is not VanillaConfig:
        yield None, None, classifier
        return
    for norm in norms:
        for place in NORM_PLACES:
            yield place, norm, replace(classifier, sizes={**classifier.sizes, "norm": norm, "norm_position": place})


Batch = dict[str, torch.Tensor]


def training_batches(
    tokenizer: PreTrainedTokenizerBase, device: torch.device, *key: object, pairs: int
) -> Iterator[Batch]:
    """Endless batches, epoch after epoch."""
    found = [
        sentence
        for distance in DISTANCES
        for sentence in agreement_pairs(pairs, distance, keyed_generator("gradients", *key, distance))
    ]
    texts = encode(tokenizer, [sentence.text for sentence in found])
    labels = torch.tensor([int(sentence.plural) for sentence in found])
    for epoch in count():
        for chosen in shuffled_batches(texts, BATCH, "gradients", *key, "order", epoch):
            ids, mask = texts.batch(chosen)
            batch = {"input_ids": ids, "attention_mask": mask, "labels": labels[chosen]}
            yield {name: tensor.to(device) for name, tensor in batch.items()}


def train_and_measure(
    model: PreTrainedModel,
    classifier: Classifier,
    steps: Sequence[int],
    batches: Iterator[Batch],
    held: Sequence[Batch],
    seed: int,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Train at a constant rate, and yield each requested step with its measurements.

    Dropout depends only on the seed and the step, whatever is measured between the steps.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=classifier.training.learning_rate, fused=True)
    model.train()
    for step in range(max(steps) + 1):
        if step in steps:
            with seeded_here(seed, "measured", step):
                found = gradient_norms(model, held)
            yield step, found
        if step < max(steps):
            model.zero_grad(set_to_none=True)
            with seeded_here(seed, "step", step):
                model(**next(batches)).loss.backward()
            optimizer.step()


@contextmanager
def seeded_here(*key: object) -> Iterator[None]:
    """Draw from torch's generators as the key says, and restore their state."""
    with torch.random.fork_rng():
        torch.manual_seed(keyed_generator("gradients", *key).initial_seed())
        yield


def gradient_norms(model: PreTrainedModel, batches: Sequence[Batch]) -> dict[str, Any]:
    """``gradient_norms``: L2 norm over all parameters of each layer, mean over batches; and the mean ``loss``.

    The model is in training mode (batch norms use the batch's statistics), and its running statistics are restored.
    """
    layers = layers_of(model)
    sums, loss_sum = torch.zeros(len(layers), dtype=torch.float64), 0.0
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for batch in batches:
        model.zero_grad(set_to_none=True)
        loss = model(**batch).loss
        loss.backward()
        loss_sum += float(loss.detach())
        norms = [torch.nn.utils.get_total_norm([p.grad for p in layer if p.grad is not None]) for layer in layers]
        sums += torch.stack(norms).double().cpu()
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])
    return {"gradient_norms": (sums / len(batches)).tolist(), "loss": loss_sum / len(batches)}
