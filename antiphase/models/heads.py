"""Language-model heads, shared by the decoder and the Transformer of 2017."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import Cache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from antiphase.attention.caches import CACHE, by_either_name
from antiphase.attention.interface import refuse_continuous_batching
from antiphase.layers.functions import has_two_keys
from antiphase.layers.registry import attention_layers
from antiphase.models.loss import next_token_loss


class VocabularyHead(PreTrainedModel):
    """A model with a linear layer from its hidden states to the vocabulary."""

    model_class: ClassVar[type[PreTrainedModel]]
    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.model = self.model_class(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()


class CausalHead(VocabularyHead, GenerationMixin):
    """A decoder with such a layer, which predicts the next token."""

    # The default that ``PreTrainedModel.loss_function`` returns; an own one is set on the model or in a subclass.
    _loss_function: ClassVar = staticmethod(next_token_loss)

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, for ``generate_batch``.

        Raises:
            ValueError: the model or its attention implementation cannot be served in this way.
        """
        layers = attention_layers(self)
        refuse_continuous_batching(self.config._attn_implementation, is_v1=any(map(has_two_keys, layers)))
        return super().init_continuous_batching(*args, **kwargs)

    @by_either_name
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (B, N or ``logits_to_keep``, vocabulary), and the mean loss in nats if ``labels`` (B, N) are given.

        ``labels`` are unshifted token ids; positions with -100 are ignored. ``shift_labels``, shifted ones, take their
        place. ``exchange`` are processes that divide the sequences, as in the model without a head; each gets the
        logits of its own tokens.

        Raises:
            ValueError: ``labels`` come with ``exchange``, whose processes only have parts of the loss.
        """
        has_labels = labels is not None or kwargs.get("shift_labels") is not None
        if has_labels and kwargs.get("exchange") is not None:
            raise ValueError("labels cannot be combined with exchange; form the loss from the logits")
        outputs = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
            past_key_values=past_key_values, inputs_embeds=inputs_embeds, use_cache=use_cache, **kwargs,
        )  # fmt: skip
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if has_labels:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions,
            **{CACHE: outputs.get(CACHE)},
        )  # fmt: skip
