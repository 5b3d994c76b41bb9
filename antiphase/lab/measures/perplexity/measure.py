"""Loss and perplexity on held-out windows."""

from __future__ import annotations

from collections.abc import Callable

from transformers import PreTrainedModel

from antiphase.lab.measures.held_out import contents as contents
from antiphase.lab.measures.held_out import prepare as prepare
from antiphase.lab.measures.parts import UNSTORED, Parts
from antiphase.lab.measures.perplexity import HeldOutLoss, Perplexity, PerplexitySettings
from antiphase.lab.scoring.loading import LoadedModel
from antiphase.lab.scoring.perplexity import perplexity
from antiphase.lab.text.prepare import PreparedData
from antiphase.lab.text.streams import Batch


def measure(
    loaded: LoadedModel, data: PreparedData, settings: PerplexitySettings, parts: Parts = UNSTORED
) -> Perplexity:
    """Measure as many windows as requested, or all if the text has fewer."""
    return held_out_perplexity(loaded.model, data.validation(settings.samples), parts.report)


def held_out_perplexity(
    model: PreTrainedModel, batch: Batch, report: Callable[[int, int], None] = lambda done, count: None
) -> Perplexity:
    """Loss and perplexity of one batch of sequences; ``report``: called with those finished and all.

    Raises:
        NonFiniteError: a loss is not finite.
    """
    return Perplexity([HeldOutLoss(sequences=len(batch.input_ids), **perplexity(model, batch, report))])
