"""What training minimizes: the loss of next tokens, summed over a batch in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antiphase.lab.scoring.likelihood import logits_after
from antiphase.layers.exchange import Exchange
from antiphase.ops.layer import cross_entropies
from antiphase.ops.shapes import IGNORED_TARGET


class NextTokenLoss(nn.Module):
    """Sum of -log p over the predicted tokens, in nats, or sum of each row's mean over its own.

    The head is applied only to positions with a label.
    """

    def __init__(self, model: PreTrainedModel, exchange: Exchange | None = None, *, equal_rows: bool = False) -> None:
        """
        Args:
            exchange: processes that divide the sequences; each gets the sum over its own tokens.
            equal_rows: whether all rows have the same weight, as ``data.equal_rows``.
        """
        super().__init__()
        self.model, self.exchange, self.equal_rows = model, exchange, equal_rows

    def forward(
        self, input_ids: Tensor, labels: Tensor, pages: Tensor | None = None, kinds: Sequence[int] = (1,)
    ) -> Tensor:
        """Token ids (B, L) and labels (B, L), which are -100 at positions without prediction.

        Args:
            pages: number of equally long pages of each row (B,), which do not see each other; None means one page each.
            kinds: the numbers in ``pages``. The model runs once for each, also where no row has this number: processes
                that divide the weights run it equally often.
        """
        if pages is None or len(kinds) == 1:
            return self._sum(input_ids, labels, kinds[0])
        found = []
        for kind in kinds:
            is_own = pages == kind
            rows = is_own if bool(is_own.any()) else slice(1)
            targets = labels[rows].masked_fill(~is_own[rows].unsqueeze(1), IGNORED_TARGET)
            found.append(self._sum(input_ids[rows], targets, kind))
        return torch.stack(found).sum()

    def _sum(self, input_ids: Tensor, labels: Tensor, pages: int) -> Tensor:
        """The sum over rows of so many pages each."""
        counts = predictions(labels).repeat_interleave(pages)
        input_ids, labels = (one.reshape(len(one) * pages, -1) for one in (input_ids, labels))
        targets = labels[:, 1:]
        further: dict[str, Any] = {}
        if self.exchange is not None:
            targets = self.exchange.own(nn.functional.pad(targets, (0, 1), value=IGNORED_TARGET))
            further["exchange"] = self.exchange
        chosen = targets >= 0
        rows, columns = chosen.nonzero(as_tuple=True)
        losses = cross_entropies(logits_after(self.model, input_ids, rows, columns, **further), targets[chosen])
        return (losses / counts[rows] if self.equal_rows else losses).sum()


def predictions(labels: Tensor) -> Tensor:
    """Number of predicted tokens of each row, (B,), from labels (B, L)."""
    return (labels[:, 1:] >= 0).sum(1)
