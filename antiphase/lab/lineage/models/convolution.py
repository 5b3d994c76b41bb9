"""The convolutional text classifier of Kim (2014, 1408.5882)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import can_return_tuple

from antiphase.lab.lineage.models.common import (
    ClassicPreTrainedModel,
    ForSequenceClassification,
    real_tokens,
    token_embedding,
)
from antiphase.lab.lineage.models.configs import ConvolutionConfig


class ConvolutionPreTrainedModel(ClassicPreTrainedModel):
    """Base class with the convolutional models' configuration."""

    config: ConvolutionConfig
    config_class = ConvolutionConfig


class ConvolutionModel(ConvolutionPreTrainedModel):
    """Filters of several widths, ReLU, and the maximum of each over the text (section 2)."""

    def __init__(self, config: ConvolutionConfig) -> None:
        super().__init__(config)
        self.embed_tokens = token_embedding(config)
        self.filters = nn.ModuleList(
            nn.Conv1d(config.embedding_width, config.num_filters, width, padding=width - 1)
            for width in config.filter_widths
        )
        self.post_init()

    @can_return_tuple
    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, inputs_embeds: Tensor | None = None
    ) -> BaseModelOutputWithPooling:
        """Embeddings (B, N, width), which are zero at padding, and the maxima (B, filters of all widths).

        A window may extend beyond the text, where it sees zeros, if it covers at least one token. So a text shorter
        than a filter also has windows, and a text without tokens has only zeros.

        Args:
            input_ids: (B, N), or ``inputs_embeds`` (B, N, width) instead.
            attention_mask: (B, N), 1 at real tokens; None means that all are real.

        Raises:
            ValueError: neither or both of ``input_ids`` and ``inputs_embeds`` are given, or the mask has another shape.
        """
        inputs_embeds = self.embedded(input_ids, inputs_embeds)
        real = real_tokens(inputs_embeds, attention_mask)
        inputs_embeds = inputs_embeds * real.unsqueeze(-1)
        channels = inputs_embeds.transpose(1, 2)  # (B, width, N)
        maxima = []
        for convolution, width in zip(self.filters, self.config.filter_widths, strict=True):
            found = nn.functional.relu(convolution(channels))  # (B, filters, N + filter width - 1)
            covered = _windows_with_tokens(real, width)
            maxima.append(found.masked_fill(~covered.unsqueeze(1), 0.0).amax(2))  # no value is below 0 after ReLU
        return BaseModelOutputWithPooling(last_hidden_state=inputs_embeds, pooler_output=torch.cat(maxima, dim=1))


def _windows_with_tokens(real: Tensor, width: int) -> Tensor:
    """(B, N + width - 1) bool: the windows that cover at least one real token (B, N)."""
    padded = nn.functional.pad(real, (width - 1, width - 1))
    return padded.unfold(1, width, 1).any(2)


class ConvolutionForSequenceClassification(ConvolutionPreTrainedModel, ForSequenceClassification):
    """Dropout and a linear classifier on the maxima; the norm of a class's weight vector is at most ``max_norm``."""

    model_class = ConvolutionModel

    def classify(self, pooled: Tensor) -> Tensor:
        """Logits (B, labels), with longer weight vectors scaled to ``max_norm`` here instead of after each step."""
        weight = self.classifier.weight
        if self.config.max_norm is not None:
            weight = torch.renorm(weight, p=2, dim=0, maxnorm=self.config.max_norm)
        return nn.functional.linear(pooled, weight, self.classifier.bias)
