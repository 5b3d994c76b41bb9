"""The decoder: embedding, blocks of norm, attention, norm and MLP, final norm and language-model head."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_layers import (
    GenericForSequenceClassification,
    GenericForTokenClassification,
    GradientCheckpointingLayer,
)
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from antiphase.attention.caches import CACHE, by_either_name
from antiphase.attention.interface import BUILT_IN
from antiphase.layers.attention import AttentionLayer
from antiphase.layers.exchange import Exchange
from antiphase.layers.functions import refuse_unknown
from antiphase.layers.mlp import MLP
from antiphase.layers.norm import NORMS
from antiphase.models.attention import attention_layer
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.heads import CausalHead
from antiphase.models.lengths import warn_of_length
from antiphase.models.model_card import write_model_card
from antiphase.models.packing import check_packing
from antiphase.models.portable import make_portable
from antiphase.models.pretrained import AttendingPreTrainedModel
from antiphase.models.start import embedding_std, linear_distribution, padding_token

MASKS = {"full_attention": create_causal_mask, "sliding_attention": create_sliding_window_causal_mask}


class Block(GradientCheckpointingLayer):
    """Y = X + attention(norm(X)); Y + MLP(norm(Y)) (2410.05258, equation 5).

    With ``use_parallel_residual``, X + attention(norm(X)) + MLP(norm'(X)) (GPT-NeoX, 2204.06745, section 2.1). With
    ``norm_position`` "after", norm(attention(X)) and norm(MLP(Y)) are added (OLMo 2, 2501.00656).
    """

    def __init__(self, config: AntiphaseConfig, layer_idx: int) -> None:
        super().__init__()
        self.is_parallel, self.norms_follow = config.use_parallel_residual, config.norm_position == "after"
        self.self_attn = attention_layer(
            config, layer_idx, bias=config.attention_bias or config.qkv_bias, output_bias=config.attention_bias,
            qk_norm_eps=config.rms_norm_eps if config.use_qk_norm else None,
        )  # fmt: skip
        self.mlp = MLP(
            config.hidden_size, config.intermediate_size, activation=config.hidden_act, gated=config.gated_mlp,
            bias=config.mlp_bias,
        )  # fmt: skip
        norm = NORMS[config.norm_type]
        self.input_layernorm = norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        attended = self._normed(self.input_layernorm, lambda x: self.self_attn(x, **kwargs)[0], hidden_states)
        if self.is_parallel:
            return self._normed(self.post_attention_layernorm, self.mlp, hidden_states) + attended + hidden_states
        hidden_states = hidden_states + attended
        return hidden_states + self._normed(self.post_attention_layernorm, self.mlp, hidden_states)

    def _normed(self, norm: nn.Module, part: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """A part of the block, attention or MLP, with its norm."""
        return norm(part(x)) if self.norms_follow else part(norm(x))


class AntiphasePreTrainedModel(AttendingPreTrainedModel):
    """Weights, loading and saving, common to all models of the decoder."""

    config: AntiphaseConfig
    config_class = AntiphaseConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar = ["Block"]
    _skip_keys_device_placement: ClassVar = [CACHE]
    _can_record_outputs: ClassVar = {"hidden_states": Block, "attentions": AttentionLayer}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize matrices by ``initializer`` (``start.py``), λ vectors from N(0, 0.1²) (2410.05258, 2.1)."""
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=embedding_std(self.config))
        elif isinstance(module, nn.Linear):
            shape, size = linear_distribution(self.config, module)
            if shape == "uniform":
                nn.init.uniform_(module.weight, -size, size)
            else:
                nn.init.normal_(module.weight, std=size)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        else:
            super()._init_weights(module)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *, portable: bool = False, **kwargs: Any) -> None:
        """Hugging Face's ``save_pretrained``, plus a model card if the folder has none.

        Args:
            portable: also write the modeling code, so that the folder loads without this package
                (``trust_remote_code=True``).

        Raises:
            ValueError: ``portable`` and ``push_to_hub`` are combined.
        """
        if portable and kwargs.get("push_to_hub"):
            raise ValueError("portable=True cannot be combined with push_to_hub; save first, then upload the folder")
        self.config.__dict__.pop("auto_map", None)  # of a portable folder from which the model was loaded
        super().save_pretrained(save_directory, **kwargs)
        if not kwargs.get("is_main_process", True):
            return
        if portable:
            make_portable(Path(save_directory))
        write_model_card(self, Path(save_directory), portable=portable)


class AntiphaseModel(AntiphasePreTrainedModel):
    """The decoder without a head."""

    def __init__(self, config: AntiphaseConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, padding_token(config))
        self.layers = nn.ModuleList(Block(config, index) for index in range(config.num_hidden_layers))
        self.norm = NORMS[config.norm_type](config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = GPTNeoXRotaryEmbedding(config=config)
        self.gradient_checkpointing = False
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
        use_cache: bool | None = None,
        exchange: Exchange | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Hidden states (B, N, hidden) of token ids (B, N) or embeddings (B, N, hidden).

        Both are multiplied by ``config.embedding_multiplier``, so ``inputs_embeds=embed_tokens(input_ids)`` is
        equivalent to ``input_ids``.

        ``attention_mask`` is (B, M) with 1 at real tokens, a 4-D mask, or a dict with one 4-D mask for each of
        ``config.layer_types``. A 4-D mask with a row for each query is used unchanged; one with a single row says which
        keys are real, and causality and window are added to it.

        ``exchange`` are processes that divide the sequences: all of them give the whole sequences, and each gets the
        hidden states (B, N / C, hidden) of its own tokens.

        Raises:
            ValueError: neither or both of ``input_ids`` and ``inputs_embeds`` are given; ``cu_seq_lens_q`` or
                ``seq_idx`` tell packed texts apart and ``position_ids`` do not; an argument is unknown; or ``exchange``
                comes with a cache or does not divide the tokens.
        """
        given = inputs_embeds if input_ids is None else input_ids
        if given is None or (input_ids is not None and inputs_embeds is not None):
            raise ValueError("exactly one of input_ids and inputs_embeds must be given")
        seen = past_key_values.get_seq_length() if past_key_values is not None else 0
        self._warn_of_length(seen, given.shape[1], position_ids)
        if kwargs.get("cache") is None:  # that of continuous batching, which has more arguments and separates texts
            if kwargs.pop("is_causal", None) is False:  # transformers passes that of the configuration, if it has one
                refuse_unknown({"is_causal": False}, self)
            if self.config._attn_implementation in BUILT_IN:
                refuse_unknown(kwargs, self)  # transformers' functions ignore what they do not know
            check_packing(kwargs, given, position_ids, attention_mask, past_key_values)
        told = position_ids
        if position_ids is None:
            position_ids = (torch.arange(given.shape[1], device=given.device) + seen).unsqueeze(0)
        rows, tokens = given.shape[0], given.shape[1]  # exported programs would keep what len returns
        if exchange is not None:
            if use_cache or past_key_values is not None:
                raise ValueError("sequences that processes divide cannot be combined with a cache; set use_cache=False")
            given = exchange.own(given)
            kwargs["exchange"] = exchange
        hidden_states: Tensor = given if input_ids is None else self.embed_tokens(given)
        whole = hidden_states if exchange is None else hidden_states.new_empty(rows, tokens, 0)
        masks = self._masks(whole, attention_mask, past_key_values, told)
        if use_cache and past_key_values is None:
            # After the masks, because create_causal_mask looks for packed sequences only if there is no cache.
            past_key_values = DynamicCache(config=self.config)
        if self.config.embedding_multiplier != 1.0:
            hidden_states = hidden_states * self.config.embedding_multiplier
        position_embeddings = self.rotary_emb(hidden_states, position_ids=position_ids)  # of the whole sequences
        if exchange is not None:
            position_embeddings = tuple(map(exchange.own, position_embeddings))
        kinds = self._kinds_of_layers()
        for layer, kind in zip(self.layers, kinds, strict=False):
            hidden_states = layer(
                hidden_states,
                attention_mask=masks[kind],
                position_embeddings=position_embeddings,
                **{CACHE: past_key_values},
                **kwargs,
            )
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden_states), **{CACHE: past_key_values})

    def _kinds_of_layers(self) -> list[str]:
        """``config.layer_types`` of the layers that run: fewer, where generate drafts with the first ones.

        Raises:
            ValueError: layers were added that it does not name.
        """
        kinds: list[str] = self.config.layer_types
        asked = min(len(self.layers), self.config.num_hidden_layers)
        if len(kinds) < asked:
            raise ValueError(
                f"config.layer_types names {len(kinds)} layers and the model has {asked}; name those that were added"
            )
        return kinds[:asked]

    def _masks(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor | dict[str, Tensor | None] | None,
        past_key_values: Cache | None,
        position_ids: Tensor | None,
    ) -> dict[str, Tensor | None]:
        """The mask of each type of layer; embeddings (B, N, …) are only asked for their shape, dtype and device.

        ``position_ids`` are those of the caller, by which packed texts are told apart. Positions counted here would
        only make a compiled model form a mask of all pairs, because transformers cannot look at them while compiling.
        """
        if isinstance(attention_mask, dict):  # generate passes a dict of masks for caches of fixed length
            return attention_mask
        return {
            kind: MASKS[kind](
                config=self.config,
                inputs_embeds=inputs_embeds,
                attention_mask=attention_mask,
                position_ids=position_ids,
                **{CACHE: past_key_values},
            )
            for kind in dict.fromkeys(self.config.layer_types)
        }

    def _warn_of_length(self, seen: int | Tensor, new: int, position_ids: Tensor | None) -> None:
        """Of a text that is too long, unless its RoPE is made for that; several in one row may be longer together."""
        longest = self.config.max_position_embeddings
        if torch.compiler.is_compiling() or not isinstance(seen, int) or seen + new <= longest:
            return
        if self.config.rope_parameters["rope_type"] == "dynamic":
            return
        if position_ids is None or bool(position_ids.max() >= longest):
            warn_of_length(longest)


class AntiphaseForCausalLM(AntiphasePreTrainedModel, CausalHead):
    """The decoder with a language-model head.

    Example:
        >>> output = model(input_ids, labels=input_ids)  # logits (B, N, vocabulary), mean loss in nats
        >>> model.generate(input_ids, max_new_tokens=8)
    """

    model_class = AntiphaseModel
    _tp_plan: ClassVar = {"lm_head": "colwise_gather_output"}


class AntiphaseForSequenceClassification(GenericForSequenceClassification, AntiphasePreTrainedModel):
    """The decoder with a classifier on the last token that is not padding."""


class AntiphaseForTokenClassification(GenericForTokenClassification, AntiphasePreTrainedModel):
    """The decoder with a classifier on every token."""
