"""Effects of attention on the answer: its share of each layer's output, and the answer's likelihood without it.

Weights alone do not show this: a large weight on a small value adds little, and later layers may not use what it adds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.attention.last_tokens import LastTokens
from antiphase.base.randomness import keyed_generator
from antiphase.lab.scoring.allocation import ALL_LAYERS, AllocationSums
from antiphase.lab.statistics.intervals import mean_interval
from antiphase.lab.text.retrieval import SPANS, RetrievalBatch

LAST_MAPS = ("softmax", "difference")
"""Maps that multiply the values."""


def allocation_with_effects(model: PreTrainedModel, batches: Iterable[RetrievalBatch]) -> list[dict[str, Any]]:
    """The rows of ``allocation``, with effects; batches may differ in length.

    ``contribution`` and ``contribution_norm`` of each span: its part of the layer's output at the last token of the
    prompt (``attention.last_tokens.Contributions``: shares, which add up to 1, and norms), and for differential heads
    the parts of both maps, which add up to that of their difference; layer "all" is the mean over layers.

    ``knockout``, for the maps in ``LAST_MAPS``: the change in the log-probability of the first answer, in nats, if its
    needle (``answer``) or as many random filler tokens (``filler``) are hidden from the tokens that predict it, in the
    row's layer, or in all layers at once for "all". These are means over sequences with Student's 95 % intervals; None
    if the batch has no answer or a sequence has too little filler.

    Raises:
        ValueError: the model's attention cannot be observed.
    """
    shares: dict[tuple[int | str, str], list[Tensor]] = defaultdict(list)
    norms: dict[tuple[int | str, str], list[Tensor]] = defaultdict(list)
    changes: dict[tuple[int | str, str], list[float]] = defaultdict(list)
    sums, count = AllocationSums(), 0
    for batch in batches:
        last, targets = last_tokens(model, batch)
        sums.add(last.rows, batch)
        spans = torch.stack([batch.spans[name] for name in SPANS], dim=1)  # (B, S, M)
        for layer, found in zip(last.numbers, last.contributions(spans), strict=True):
            for name, part in found.by_map().items():
                shares[layer, name] += part.shares()
                norms[layer, name] += part.norms()
        whole = last.log_probabilities(targets)
        names: dict[int | None, int | str] = {None: ALL_LAYERS, **dict(enumerate(last.numbers))}
        for what, hidden in (("answer", batch.spans["answer"]), ("filler", random_filler(batch, count))):
            known = hidden.any(1) & (targets >= 0).any(1)
            for place, without in zip(names.values(), last.without(hidden, targets, list(names)), strict=True):
                changes[place, what] += (without - whole)[known].tolist()
        count += len(batch.input_ids)
    contributions = {"contribution": _with_mean(shares), "contribution_norm": _with_mean(norms)}
    rows = []
    for row in sums.rows():
        key = row["layer"], row["map"]
        for index, span in enumerate(SPANS):
            row["spans"][span] |= {name: float(values[key][index]) for name, values in contributions.items()}
        if row["map"] in LAST_MAPS:
            row["knockout"] = {what: _mean(changes[row["layer"], what], count) for what in ("answer", "filler")}
        rows.append(row)
    return rows


def _with_mean(by_place: Mapping[tuple[int | str, str], list[Tensor]]) -> dict[tuple[int | str, str], Tensor]:
    """Means (S,) over sequences by layer and map, and for each map the mean over its layers."""
    means = {place: torch.stack(values).mean(0) for place, values in by_place.items()}
    for name in dict.fromkeys(name for _, name in means):
        means[ALL_LAYERS, name] = torch.stack([value for (_, other), value in means.items() if other == name]).mean(0)
    return means


def last_tokens(model: PreTrainedModel, batch: RetrievalBatch) -> tuple[LastTokens, Tensor]:
    """The tokens that predict the first answer, from the prompt's last one on, and the answer (B, P), -1 as padding."""
    answer = batch.answer_positions[:, 0]  # (B, A)
    targets = batch.input_ids.gather(1, answer.clamp(min=0)).where(answer >= 0, -1)
    end = batch.prompt_end[:, None]
    positions = (answer - 1).where(answer >= 0, end)  # without an answer, repeat the last token of the prompt
    return LastTokens(model, batch.input_ids, positions), targets


def random_filler(batch: RetrievalBatch, first: int) -> Tensor:
    """As many random filler tokens as the answer's needle has tokens, (B, M) bool; none if there are too few.

    ``first`` is the index of the first sequence. Each has its own random numbers, so the batch size has no effect.
    """
    chosen = torch.zeros_like(batch.spans["filler"])
    for row, (filler, answer) in enumerate(zip(batch.spans["filler"], batch.spans["answer"], strict=True)):
        places, wanted = filler.nonzero().flatten(), int(answer.sum())
        if len(places) >= wanted:
            order = torch.randperm(len(places), generator=keyed_generator("filler", first + row))
            chosen[row, places[order[:wanted]]] = True
    return chosen


def _mean(changes: Sequence[float], sequences: int) -> dict[str, Any] | None:
    if len(changes) < sequences:
        return None
    interval = mean_interval(changes)
    return {"change": sum(changes) / len(changes), "interval": None if interval is None else list(interval)}
