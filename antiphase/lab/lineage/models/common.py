"""Shared parts of the earlier models: embeddings, initial weights, and a classifier on a text's vector."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils import can_return_tuple

from antiphase.lab.lineage.models.configs import ClassicConfig
from antiphase.models.portable import refuse_portable
from antiphase.models.start import padding_token

WORD_STD = 0.25 / 3**0.5
"""Standard deviation of uniform values between -0.25 and 0.25."""


class OneHot(nn.Module):
    """Represents token i as the i-th unit vector; has no weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, input_ids: Tensor) -> Tensor:
        """(B, N) whole numbers to (B, N, width)."""
        return nn.functional.one_hot(input_ids, self.width)


def token_embedding(config: ClassicConfig, *, vocab_size: int | None = None) -> nn.Module:
    """An embedding with vectors of width ``config.embedding_width``."""
    if config.embeddings == "one_hot":
        return OneHot(config.embedding_width)
    return nn.Embedding(vocab_size or config.vocab_size, config.embedding_width, padding_token(config))


def real_tokens(embedded: Tensor, attention_mask: Tensor | None) -> Tensor:
    """(B, N) bool: the tokens of a batch (B, N, width) that are not padding.

    Raises:
        ValueError: the mask has another shape.
    """
    if attention_mask is None:
        return torch.ones(embedded.shape[:2], dtype=torch.bool, device=embedded.device)
    if attention_mask.shape != embedded.shape[:2]:
        raise ValueError(
            f"attention_mask must be (batch, length) {tuple(embedded.shape[:2])}, got {tuple(attention_mask.shape)}"
        )
    return attention_mask.bool()


class ClassicPreTrainedModel(PreTrainedModel):
    """Loading, saving and initial weights."""

    config: ClassicConfig
    config_class = ClassicConfig
    base_model_prefix = "model"

    def save_pretrained(self, save_directory: str | os.PathLike[str], **kwargs: Any) -> None:
        """
        Raises:
            ValueError: ``portable``, which only the decoder of this package has.
        """
        refuse_portable(kwargs)
        super().save_pretrained(save_directory, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Start linear layers as Glorot and Bengio (2010), convolutions as He et al. (1502.01852); biases 0, norms 1.

        Recurrent matrices are orthogonal (Saxe et al., 1312.6120), so that states of a plain network neither vanish nor
        explode at first, and an LSTM's forget gates start open (bias 1; Jozefowicz et al., 2015).
        """
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.embedding_std(module.embedding_dim))
            if module.padding_idx is not None:
                rows = module.weight.clone()
                rows[module.padding_idx] = 0.0
                init.copy_(module.weight, rows)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            _zero(module.bias)
        elif isinstance(module, nn.Conv1d):
            init.kaiming_uniform_(module.weight, nonlinearity="relu")
            _zero(module.bias)
        elif isinstance(module, nn.RNNBase):
            _initialize_recurrent(module)
        else:
            super()._init_weights(module)

    def embedded(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """The embeddings (B, N, width) of token ids (B, N), or those that are given instead.

        Raises:
            ValueError: neither or both are given.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("exactly one of input_ids and inputs_embeds must be given")
        if inputs_embeds is not None:
            return inputs_embeds
        return self.embed_tokens(input_ids).to(self.dtype)

    def embedding_std(self, width: int) -> float:
        """Standard deviation of initial embeddings: that of word2vec vectors, as in Kim (2014), section 4."""
        return WORD_STD


def _zero(bias: Tensor | None) -> None:
    if bias is not None:
        init.zeros_(bias)


def _initialize_recurrent(module: nn.RNNBase) -> None:
    for name, parameter in module.named_parameters():
        gates = parameter.chunk(parameter.shape[0] // module.hidden_size)
        if name.startswith("weight_hh"):
            init.copy_(parameter, torch.cat([init.orthogonal_(torch.empty_like(gate)) for gate in gates]))
        elif name.startswith("weight_ih"):
            init.copy_(parameter, torch.cat([init.xavier_uniform_(torch.empty_like(gate)) for gate in gates]))
        else:
            values = torch.zeros_like(parameter)
            if isinstance(module, nn.LSTM) and name.startswith("bias_ih"):  # gates are input, forget, cell, output
                values[module.hidden_size : 2 * module.hidden_size] = 1.0
            init.copy_(parameter, values)


class ForSequenceClassification(ClassicPreTrainedModel):
    """A model with a linear classifier on its text vector."""

    model_class: ClassVar[type[ClassicPreTrainedModel]]

    def __init__(self, config: ClassicConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = self.model_class(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.pooled_width, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Logits (B, labels), and the mean loss in nats if ``labels`` (B,) are given.

        Args:
            input_ids: (B, N), or ``inputs_embeds`` (B, N, width) instead.
            attention_mask: (B, N), 1 at real tokens; None means that all are real.
            num_items_in_batch: divisor of the sum of losses, set by transformers' Trainer; None means B.

        Raises:
            ValueError: the mask has another shape.
        """
        outputs = self.model(input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs)
        if outputs.pooler_output is None:
            raise ValueError("a classifier needs attention_mask as (batch, length), to tell padding from tokens")
        logits = self.classify(self.dropout(outputs.pooler_output))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, pooled_logits=logits, config=self.config,
                num_items_in_batch=num_items_in_batch,
            )  # fmt: skip
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def classify(self, pooled: Tensor) -> Tensor:
        """Logits (B, labels) for vectors (B, pooled width)."""
        return self.classifier(pooled)
