"""The Transformer of 2017 (Vaswani et al., 1706.03762), encoder or decoder, with later modifications as options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions, MaskedLMOutput
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from antiphase.attention.caches import CACHE, by_either_name
from antiphase.base.errors import InputError
from antiphase.lab.lineage.models.common import (
    ClassicPreTrainedModel,
    ForSequenceClassification,
    real_tokens,
    token_embedding,
)
from antiphase.lab.lineage.models.configs import VanillaConfig
from antiphase.layers.attention import AttentionLayer
from antiphase.layers.functions import refuse_unknown
from antiphase.layers.positions import count_positions, sinusoidal_positions
from antiphase.models.attention import attention_layer
from antiphase.models.heads import CausalHead, VocabularyHead
from antiphase.models.lengths import warn_of_length
from antiphase.models.pretrained import AttendingPreTrainedModel


class MLP(nn.Module):
    """ReLU(X W1 + b1) W2 + b2 (section 3.3), the same with GELU, or (swish(X Wg) ⊙ X W1) W2 (2002.05202)."""

    def __init__(self, config: VanillaConfig) -> None:
        super().__init__()
        narrow, wide, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(narrow, wide, bias=bias) if config.activation == "swiglu" else None
        self.up_proj = nn.Linear(narrow, wide, bias=bias)
        self.down_proj = nn.Linear(wide, narrow, bias=bias)
        self.activation = nn.functional.relu if config.activation == "relu" else nn.functional.gelu

    def forward(self, hidden_states: Tensor) -> Tensor:
        wide = self.up_proj(hidden_states)
        if self.gate_proj is None:
            return self.down_proj(self.activation(wide))
        return self.down_proj(nn.functional.silu(self.gate_proj(hidden_states)) * wide)


class Norm(nn.Module):
    """LayerNorm, RMSNorm, or BatchNorm over the real tokens of a batch, which excludes padding."""

    def __init__(self, config: VanillaConfig) -> None:
        super().__init__()
        kinds: dict[str, Callable[..., nn.Module]] = {
            "layer_norm": nn.LayerNorm, "rms_norm": nn.RMSNorm, "batch_norm": nn.BatchNorm1d,
        }  # fmt: skip
        self.inner = kinds[config.norm](config.hidden_size, eps=config.norm_eps)

    def forward(self, hidden_states: Tensor, real: Tensor | None) -> Tensor:
        """(B, N, hidden); ``real`` is (B, N) bool, or None if unknown.

        Raises:
            ValueError: ``real`` is unknown while BatchNorm is trained.
        """
        if not isinstance(self.inner, nn.BatchNorm1d):
            return self.inner(hidden_states)
        if not self.training:
            return self.inner(hidden_states.flatten(0, 1)).view_as(hidden_states)
        if real is None:
            raise ValueError("norm=batch_norm needs attention_mask as (batch, length), to tell padding from tokens")
        normed = torch.zeros_like(hidden_states)
        normed[real] = self.inner(hidden_states[real]).to(normed.dtype)
        return normed


class VanillaLayer(nn.Module):
    """Attention, in an encoder–decoder's decoder also cross-attention, and MLP; each with residual and norm."""

    def __init__(self, config: VanillaConfig, layer_idx: int, *, is_causal: bool, has_context: bool) -> None:
        super().__init__()
        self.is_pre_norm = config.norm_position == "pre"
        self.self_attn = attention_layer(config, layer_idx, is_causal=is_causal, bias=config.attention_bias)
        self.self_attn_norm = Norm(config)
        self.cross_attn = None
        if has_context:
            self.cross_attn = attention_layer(config, layer_idx, is_causal=False, bias=config.attention_bias)
            self.cross_attn_norm = Norm(config)
        self.mlp = MLP(config)
        self.mlp_norm = Norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        hidden_states: Tensor,
        real: Tensor | None,
        position_embeddings: tuple[Tensor, Tensor] | None,
        attention_mask: Tensor | None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """(B, N, hidden) to (B, N, hidden)."""

        def attend_to_itself(tokens: Tensor) -> Tensor:
            return self.self_attn(tokens, position_embeddings, attention_mask, **kwargs)[0]

        def attend_to_context(tokens: Tensor) -> Tensor:
            assert self.cross_attn is not None
            return self.cross_attn(tokens, None, context_mask, context=context, **kwargs)[0]

        hidden_states = self._add(attend_to_itself, self.self_attn_norm, hidden_states, real)
        if self.cross_attn is not None:
            hidden_states = self._add(attend_to_context, self.cross_attn_norm, hidden_states, real)
        return self._add(self.mlp, self.mlp_norm, hidden_states, real)

    def _add(
        self, sublayer: Callable[[Tensor], Tensor], norm: nn.Module, hidden_states: Tensor, real: Tensor | None
    ) -> Tensor:
        """Pre-norm: x + f(norm(x)); post-norm: norm(x + f(x))."""
        if self.is_pre_norm:
            return hidden_states + self.dropout(sublayer(norm(hidden_states, real)))
        return norm(hidden_states + self.dropout(sublayer(hidden_states)), real)


class VanillaPreTrainedModel(AttendingPreTrainedModel, ClassicPreTrainedModel):
    """Base class with the Transformer's configuration, attention implementations and recordable outputs."""

    config: VanillaConfig
    config_class = VanillaConfig
    _no_split_modules: ClassVar = ["VanillaLayer"]
    _skip_keys_device_placement: ClassVar = [CACHE]
    _can_record_outputs: ClassVar = {
        "hidden_states": VanillaLayer,
        "attentions": OutputRecorder(AttentionLayer, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(AttentionLayer, index=1, layer_name="cross_attn"),
    }

    def embedding_std(self, width: int) -> float:
        """√(1 / width), so that embeddings multiplied by √width (section 3.4) have variance one."""
        return width**-0.5


class VanillaModel(VanillaPreTrainedModel):
    """The encoder or decoder without a head.

    Args:
        is_encoder: whether tokens also see later ones despite ``config.is_causal``, in the encoder of an
            encoder–decoder.
        has_context: whether each layer also attends to another text.
        vocab_size: size of the vocabulary; None means ``config.vocab_size``.
    """

    def __init__(
        self,
        config: VanillaConfig,
        *,
        is_encoder: bool = False,
        has_context: bool = False,
        vocab_size: int | None = None,
    ) -> None:
        super().__init__(config)
        self.is_causal = config.is_causal and not is_encoder
        self.declared_causal = config.is_causal
        self.embed_tokens = token_embedding(config, vocab_size=vocab_size)
        self.embed_positions = None
        if config.positions == "learned":
            self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.rotary_emb = LlamaRotaryEmbedding(config=config) if config.positions == "rotary" else None
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            VanillaLayer(config, index, is_causal=self.is_causal, has_context=has_context)
            for index in range(config.num_hidden_layers)
        )
        self.norm = Norm(config) if config.norm_position == "pre" else None  # post-norm layers already end with a norm
        self.post_init()

    @by_either_name
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | dict[str, Tensor | None] | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """Hidden states (B, N, hidden), and text vectors: the mean over tokens (encoder) or the last token (decoder).

        Args:
            input_ids: (B, N), or ``inputs_embeds`` (B, N, hidden) instead.
            attention_mask: (B, M), 1 at real tokens, including those of earlier calls; or a 4-D mask, with which there
                is no text vector.
            position_ids: (1|B, N); None means counted over real tokens.
            encoder_hidden_states: (B, M', hidden) to attend to; ``encoder_attention_mask`` (B, M') is their padding.

        Raises:
            ValueError: neither or both of ``input_ids`` and ``inputs_embeds`` are given, there are more tokens than
                positions, or an encoder gets a cache.
        """
        inputs_embeds = self.embedded(input_ids, inputs_embeds)
        if isinstance(attention_mask, dict):  # by kind of layer, as generate makes it for a static cache
            attention_mask = attention_mask["full_attention"]
        # transformers passes the configuration's field to every call, and changes it during one that is given another
        if kwargs.pop("is_causal", self.declared_causal) != self.declared_causal:
            raise ValueError("is_causal is a field of the configuration; it cannot be given to a call")
        refuse_unknown(kwargs, self)  # transformers' attention functions ignore what they do not know
        if past_key_values is not None and not self.is_causal:
            raise ValueError("past_key_values cannot be used in an encoder, whose tokens see those that come later")
        seen = int(past_key_values.get_seq_length()) if past_key_values is not None else 0
        real = self._real_tokens(inputs_embeds, attention_mask, seen)
        told = position_ids  # without the caller's positions nothing is packed, and compiled models need no mask
        if position_ids is None:
            position_ids = self._positions(inputs_embeds, attention_mask, seen)
        masks: dict[str, Any] = {"config": self.config, "inputs_embeds": inputs_embeds}
        if self.is_causal:
            mask = create_causal_mask(
                **masks, attention_mask=attention_mask, position_ids=told, **{CACHE: past_key_values}
            )
        else:
            mask = create_bidirectional_mask(**masks, attention_mask=attention_mask)
        context_mask = None
        if encoder_hidden_states is not None:
            context_mask = create_bidirectional_mask(
                **masks, attention_mask=encoder_attention_mask, encoder_hidden_states=encoder_hidden_states
            )
        if use_cache and self.is_causal and past_key_values is None:
            past_key_values = self._new_cache(has_context=encoder_hidden_states is not None)
        hidden_states = self._with_positions(inputs_embeds, position_ids)
        position_embeddings = None if self.rotary_emb is None else self.rotary_emb(hidden_states, position_ids)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states, real, position_embeddings, mask, encoder_hidden_states, context_mask,
                past_key_values=past_key_values, **kwargs,
            )  # fmt: skip
        if self.norm is not None:
            hidden_states = self.norm(hidden_states, real)
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=hidden_states,
            pooler_output=None if real is None else self._pool(hidden_states, real),
            **{CACHE: past_key_values},
        )

    def _real_tokens(self, embedded: Tensor, attention_mask: Tensor | None, seen: int) -> Tensor | None:
        """(B, N) bool for the new tokens; None if the mask does not contain this information."""
        if attention_mask is None:
            return real_tokens(embedded, None)
        if attention_mask.dim() == 4:
            return None
        return real_tokens(embedded, attention_mask[:, seen : seen + embedded.shape[1]])

    def _positions(self, embedded: Tensor, attention_mask: Tensor | None, seen: int) -> Tensor:
        new = embedded.shape[1]
        if attention_mask is None or attention_mask.dim() == 4:
            return torch.arange(seen, seen + new, device=embedded.device).unsqueeze(0)
        return count_positions(attention_mask)[:, seen : seen + new]

    def _with_positions(self, embedded: Tensor, position_ids: Tensor) -> Tensor:
        """Scaled embeddings plus positions, with dropout (sections 3.4, 3.5 and 5.4)."""
        longest = self.config.max_position_embeddings
        if not torch.compiler.is_compiling() and position_ids.numel() and int(position_ids.max()) >= longest:
            if self.embed_positions is not None:
                raise ValueError(
                    f"a text of {int(position_ids.max()) + 1} tokens is longer than the model's "
                    f"max_position_embeddings ({longest}); shorten it or raise max_position_embeddings"
                )
            warn_of_length(longest)
        if self.config.scale_embeddings and self.config.embeddings == "learned":
            embedded = embedded * self.config.hidden_size**0.5
        if self.embed_positions is not None:
            embedded = embedded + self.embed_positions(position_ids)
        elif self.config.positions == "sinusoidal":
            embedded = embedded + sinusoidal_positions(position_ids, self.config.hidden_size).to(embedded.dtype)
        return self.dropout(embedded)

    def _new_cache(self, *, has_context: bool) -> Cache:
        cache = DynamicCache(config=self.config)
        return EncoderDecoderCache(cache, DynamicCache(config=self.config)) if has_context else cache

    def _pool(self, hidden_states: Tensor, real: Tensor) -> Tensor:
        """Text vectors (B, hidden); zeros for a text without tokens."""
        if not self.is_causal:
            return (hidden_states * real.unsqueeze(-1)).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
        places = torch.arange(real.shape[1], device=real.device)
        last = (places * real).argmax(1)
        chosen = hidden_states[torch.arange(len(last), device=last.device), last]
        return chosen * real.any(1, keepdim=True)


class VanillaForCausalLM(VanillaPreTrainedModel, CausalHead):
    """The decoder with a language-model head.

    Raises:
        InputError: the model is an encoder, which would see the tokens to predict.
    """

    model_class = VanillaModel

    def __init__(self, config: VanillaConfig) -> None:
        if not config.is_causal:
            raise InputError("an encoder (is_causal: false) cannot predict the next token; set is_causal to true")
        super().__init__(config)


class VanillaForMaskedLM(VanillaPreTrainedModel, VocabularyHead):
    """The encoder with a head that predicts masked tokens (Devlin et al., 1810.04805, section 3.1).

    Raises:
        InputError: the model is a decoder, which does not see later tokens.
    """

    model_class = VanillaModel

    def __init__(self, config: VanillaConfig) -> None:
        if config.is_causal:
            raise InputError("masked language modelling needs an encoder; set is_causal to false")
        super().__init__(config)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Logits (B, N, vocabulary), and the mean loss in nats if ``labels`` (B, N) are given.

        ``labels`` are the original tokens; positions with -100 are ignored.
        """
        outputs = self.model(
            input_ids, attention_mask=attention_mask, position_ids=position_ids, inputs_embeds=inputs_embeds, **kwargs
        )
        logits = self.lm_head(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.vocab_size, **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class VanillaForSequenceClassification(VanillaPreTrainedModel, ForSequenceClassification):
    """A linear classifier on an encoder's mean over tokens, or on a decoder's last token."""

    model_class = VanillaModel
