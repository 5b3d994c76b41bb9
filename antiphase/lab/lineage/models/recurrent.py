"""Recurrent networks, plain or LSTM, as language model or classifier."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions, CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from antiphase.attention.caches import CACHE, by_either_name
from antiphase.base.errors import InputError
from antiphase.lab.lineage.models.common import (
    ClassicPreTrainedModel,
    ForSequenceClassification,
    real_tokens,
    token_embedding,
)
from antiphase.lab.lineage.models.configs import RecurrentConfig

NETWORKS = {"rnn": nn.RNN, "lstm": nn.LSTM}
State = tuple[Tensor, ...]
"""State of all layers after a text: h, and c for an LSTM; each (layers, B, hidden)."""


class RecurrentPreTrainedModel(ClassicPreTrainedModel):
    """Base class with the recurrent models' configuration."""

    config: RecurrentConfig
    config_class = RecurrentConfig


class RecurrentModel(RecurrentPreTrainedModel):
    """The network without a head. Padding on either side is skipped."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        self.embed_tokens = token_embedding(config)
        self.dropout = nn.Dropout(config.dropout)
        self.network = NETWORKS[config.cell](
            config.embedding_width, config.hidden_size, config.num_hidden_layers, batch_first=True,
            bidirectional=config.bidirectional, dropout=config.dropout if config.num_hidden_layers > 1 else 0.0,
        )  # fmt: skip
        self.post_init()

    @by_either_name
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: State | None = None,
        use_cache: bool | None = None,
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """States of the last layer (B, N, directions · hidden), zero at padding, and the final state of each direction.

        Args:
            input_ids: (B, N), or ``inputs_embeds`` (B, N, width) instead.
            attention_mask: (B, N), 1 at real tokens; None means that all are real. The states of a text without tokens
                are zero.
            past_key_values: the state after earlier tokens, from which the network starts.
            use_cache: whether to return the state after these tokens as ``past_key_values``.

        Raises:
            ValueError: neither or both of ``input_ids`` and ``inputs_embeds`` are given, the mask has another shape, or
                a state is given for a bidirectional network.
        """
        inputs_embeds = self.embedded(input_ids, inputs_embeds)
        if past_key_values is not None and self.config.bidirectional:
            raise ValueError("past_key_values cannot be used in a bidirectional network, which reads from the end too")
        inputs_embeds = self.dropout(inputs_embeds)
        real = real_tokens(inputs_embeds, attention_mask)
        lengths = real.sum(1)
        begin: Any = past_key_values if past_key_values is None or self.config.cell == "lstm" else past_key_values[0]
        if bool(real.all()):  # packed sequences are up to three times as slow for a plain network on a CPU
            states, final = self.network(inputs_embeds, begin)
        else:
            order = torch.argsort((~real).int(), dim=1, stable=True)  # (B, N): tokens in their order, then padding
            packed = pack_padded_sequence(
                _rows(inputs_embeds, order), lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
            )
            states, final = self.network(packed, begin)
            states, _ = pad_packed_sequence(states, batch_first=True, total_length=real.shape[1])
            states = _rows(states, torch.argsort(order, dim=1)) * real.unsqueeze(-1)
        state: State = final if isinstance(final, tuple) else (final,)  # (layers · directions, B, hidden)
        some = (lengths > 0).unsqueeze(-1)
        before = past_key_values or (torch.zeros_like(state[0]),) * len(state)
        state = tuple(torch.where(some, new, old) for new, old in zip(state, before, strict=True))
        directions = 2 if self.config.bidirectional else 1
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=states,
            pooler_output=state[0][-directions:].transpose(0, 1).flatten(1),
            **{CACHE: state if use_cache and not self.config.bidirectional else None},
        )

    def parameters_by_layer(self) -> list[list[nn.Parameter]]:
        """Parameters of each layer, both directions together, without embeddings."""
        named = list(self.network.named_parameters())
        return [
            [parameter for name, parameter in named if name.removesuffix("_reverse").endswith(f"_l{layer}")]
            for layer in range(self.config.num_hidden_layers)
        ]


def _rows(values: Tensor, order: Tensor) -> Tensor:
    """(B, N, width) with the tokens of each text in the ``order`` (B, N)."""
    return values.gather(1, order.unsqueeze(-1).expand(-1, -1, values.shape[-1]))


class RecurrentForCausalLM(RecurrentPreTrainedModel, GenerationMixin):
    """A unidirectional network with a language-model head. ``generate`` continues from the state after each token.

    Raises:
        InputError: the network is bidirectional, so it would see the token to predict.
    """

    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}
    _is_stateful = True  # a state cannot be cropped to fewer tokens

    def __init__(self, config: RecurrentConfig) -> None:
        if config.bidirectional:
            raise InputError("a bidirectional network cannot predict the next token; set bidirectional to false")
        super().__init__(config)
        self.model = RecurrentModel(config)
        self.vocab_size = config.vocab_size
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = nn.Linear(config.pooled_width, config.vocab_size, bias=False)
        self.post_init()

    @by_either_name
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        past_key_values: State | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
    ) -> CausalLMOutputWithPast:
        """Logits (B, N or ``logits_to_keep``, vocabulary), and the mean loss in nats if ``labels`` (B, N) are given.

        ``labels`` are unshifted token ids; positions with -100 are ignored. ``num_items_in_batch`` replaces the number
        of losses as the divisor of their sum.
        """
        outputs = self.model(
            input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, past_key_values=past_key_values,
            use_cache=use_cache,
        )  # fmt: skip
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(self.dropout(outputs.last_hidden_state[:, kept]))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.vocab_size, num_items_in_batch=num_items_in_batch
            )
        return CausalLMOutputWithPast(loss=loss, logits=logits, **{CACHE: outputs.get(CACHE)})

    @by_either_name
    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: State | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The last token if there is a state of the earlier ones, else the whole text."""
        new = slice(None) if past_key_values is None else slice(-1, None)
        mask = None if attention_mask is None else attention_mask[:, new]
        return {
            "input_ids": input_ids[:, new], "attention_mask": mask, CACHE: past_key_values,
            "use_cache": use_cache,
        }  # fmt: skip

    @staticmethod
    def _reorder_cache(past_key_values: State, beams: Tensor) -> State:
        return tuple(part.index_select(1, beams.to(part.device)) for part in past_key_values)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False


class RecurrentForSequenceClassification(RecurrentPreTrainedModel, ForSequenceClassification):
    """A linear classifier on the final state of each direction."""

    model_class = RecurrentModel
