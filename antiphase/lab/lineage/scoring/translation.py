"""Scores of an encoder–decoder: teacher-forced loss and accuracy, whole sentences, and alignment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.base.modes import evaluation_mode
from antiphase.lab.lineage.data.text_batches import EncodedTexts, sorted_batches
from antiphase.lab.lineage.results import AlignmentAccuracy, SentenceScore
from antiphase.lab.scoring.lengths import context_length
from antiphase.lab.scoring.likelihood import finite_losses
from antiphase.ops.shapes import IGNORED_TARGET

TOKENS = 1 << 13
"""Number of target tokens in a batch, including padding."""


@torch.no_grad()
def teacher_forced(
    model: PreTrainedModel, sources: EncodedTexts, targets: EncodedTexts, *, unknown: int | None = None
) -> dict[str, float]:
    """``loss`` in nats per token, and ``accuracy``: how often the correct token is the most likely one.

    Previous tokens are the correct ones, and the end token counts. An ``unknown`` token is never correct, because it
    may mean another word. The model's mode is restored.

    Raises:
        NonFiniteError: a loss is not finite.
    """
    loss = right = count = 0.0
    with evaluation_mode(model):
        for rows in sorted_batches(targets, TOKENS):
            ids, mask = (tensor.to(model.device) for tensor in sources.batch(rows))
            labels = targets.labels(rows).to(model.device)
            logits = model(input_ids=ids, attention_mask=mask, labels=labels).logits.float()
            real = labels != IGNORED_TARGET
            loss += float(finite_losses(logits[real], labels[real]).double().sum())
            known = real if unknown is None else real & (labels != unknown)
            right += int((logits.argmax(-1) == labels)[known].sum())
            count += int(real.sum())
    return {"loss": loss / count, "accuracy": right / count}


@torch.no_grad()
def greedy_outputs(model: PreTrainedModel, sources: EncodedTexts, longest: int) -> list[list[int]]:
    """Greedy outputs of the model for each source: token ids up to and including the end token, at most ``longest``."""
    how = {"max_new_tokens": longest, "max_length": None, "do_sample": False, "num_beams": 1}
    end = model.config.eos_token_id
    found: list[list[int]] = [[] for _ in range(len(sources))]
    with evaluation_mode(model):
        for rows in sorted_batches(sources, TOKENS):
            ids, mask = (tensor.to(model.device) for tensor in sources.batch(rows))
            out = model.generate(input_ids=ids, attention_mask=mask, **how)
            for row, line in zip(rows, out[:, 1:].tolist(), strict=True):  # the first is the start token
                found[row] = line[: line.index(end) + 1] if end in line else line
    return found


def written_texts(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sources: EncodedTexts) -> list[str]:
    """Greedy outputs as texts, at most ten tokens longer than twice the longest source."""
    longest = 2 * max(map(len, sources.ids)) + 10
    positions = context_length(model)
    outputs = greedy_outputs(model, sources, longest if positions is None else min(longest, positions))
    return tokenizer.batch_decode(outputs, skip_special_tokens=True)


def sentence_scores(
    outputs: Sequence[Sequence[int]], references: Sequence[Sequence[int]], *, end: int, unknown: int | None
) -> SentenceScore:
    """Scores of outputs (token ids with the end token) against references.

    A reference with an ``unknown`` token never matches, because that may mean another word.

    Raises:
        ValueError: the numbers of outputs and references differ, or there are none.
    """
    if len(outputs) != len(references) or not references:
        raise ValueError(f"{len(outputs)} outputs for {len(references)} references")
    both = list(zip(map(list, outputs), map(list, references), strict=True))
    exact = sum(output == reference and unknown not in reference for output, reference in both)
    hits = sum(a == b and b != unknown for output, reference in both for a, b in zip(output, reference, strict=False))
    return SentenceScore(
        samples=len(both),
        exact=exact,
        exact_match=exact / len(both),
        tokens_in_place=hits / sum(map(len, references)),
        ended=sum(end in output for output in outputs) / len(both),
    )


def most_common_token(references: Sequence[Sequence[int]]) -> int:
    """The most common token in the references; among equals, the smallest."""
    counts = Counter(token for reference in references for token in reference)
    return min(counts, key=lambda token: (-counts[token], token))


def alignment_hits(weights: Tensor, alignment: Sequence[int]) -> dict[str, Tensor]:
    """Number of target words whose largest attention weight is on their source word.

    Args:
        weights: (layers, heads, N, M) of cross-attention, signed if maps are subtracted; the largest signed weight
            counts, because negative weights are not attention.
        alignment: for each of the first words of the target, at most N, the index of its source word.

    Returns:
        Counts: ``heads`` (layers, heads), ``layers`` (layers,) for the mean of a layer's heads.
    """
    right = torch.tensor(alignment, dtype=torch.long, device=weights.device)
    rows = weights[:, :, : len(alignment)]
    return {"heads": (rows.argmax(-1) == right).sum(-1), "layers": (rows.mean(1).argmax(-1) == right).sum(-1)}


@torch.no_grad()
def alignment_accuracy(
    model: PreTrainedModel, sources: EncodedTexts, targets: EncodedTexts, alignments: Sequence[Sequence[int]]
) -> AlignmentAccuracy:
    """Share of target words with the largest weight on the correct source word, given the correct previous words.

    Every word must be one token.

    Args:
        alignments: alignments of the first texts, which are the ones measured.
    """
    totals: dict[str, Tensor] = {}
    with evaluation_mode(model):
        for row, alignment in enumerate(alignments):
            ids, labels = (torch.tensor([texts.ids[row]], device=model.device) for texts in (sources, targets))
            assert ids.shape[1] > max(alignment)  # every word is one token
            for name, hits in alignment_hits(model.alignment(ids, labels)[:, 0].cpu(), alignment).items():
                totals[name] = totals[name] + hits if name in totals else hits
    words = sum(map(len, alignments))
    chance = sum(len(alignment) / len(ids) for alignment, ids in zip(alignments, sources.ids, strict=False))
    same = sum(place == n for alignment in alignments for n, place in enumerate(alignment))
    return AlignmentAccuracy(
        words=words,
        heads=(totals["heads"] / words).tolist(),
        layers=(totals["layers"] / words).tolist(),
        chance=chance / words,
        same_place=same / words,
    )
