"""Decoders of this package as a model of vLLM, on its layers and its paged cache; only vLLM imports this module.

The entry point ``vllm.general_plugins`` names it to vLLM (``registration.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import ColumnParallelLinear, ReplicatedLinear, RowParallelLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.utils import AutoWeightsLoader, maybe_prefix

from antiphase.layers.norm import NORMS
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.serving import PagedAttention, paged_sizes, refuse_unserved
from antiphase.models.tensor_plan import COLUMNS, ROWS, tensor_plan
from antiphase.models.transformer import Block

DIVIDED: Mapping[str, Any] = {COLUMNS: ColumnParallelLinear, ROWS: RowParallelLinear}


class Decoder(nn.Module):
    """Embedding, blocks and final norm."""

    def __init__(self, settings: VllmConfig, prefix: str) -> None:
        super().__init__()
        config: AntiphaseConfig = settings.model_config.hf_config
        self.multiplier = config.embedding_multiplier
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, quant_config=settings.quant_config
        )
        self.layers = nn.ModuleList(
            _block(settings, index, f"{prefix}.layers.{index}") for index in range(config.num_hidden_layers)
        )
        self.norm = NORMS[config.norm_type](config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = GPTNeoXRotaryEmbedding(config=config)

    def forward(self, input_ids: Tensor | None, positions: Tensor, inputs_embeds: Tensor | None) -> Tensor:
        """Hidden states (N, hidden) of the tokens of all texts in a row."""
        hidden_states = (self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds)[None]
        if self.multiplier != 1.0:
            hidden_states = hidden_states * self.multiplier
        rotary = self.rotary_emb(hidden_states, position_ids=positions[None])
        for layer in self.layers:
            hidden_states = layer(hidden_states, position_embeddings=rotary)
        return self.norm(hidden_states)[0]


class AntiphaseForCausalLM(nn.Module):
    """The decoder with a language-model head, in the form that vLLM asks of a model."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config: AntiphaseConfig = vllm_config.model_config.hf_config
        refuse_unserved(config, processes=get_tensor_model_parallel_world_size(), decoder=type(self).__name__)
        vllm_config.cache_config.sliding_window = None  # every layer gives its own, which may be none
        self.model = Decoder(vllm_config, maybe_prefix(prefix, "model"))
        self.lm_head = ParallelLMHead(
            config.vocab_size, config.hidden_size, quant_config=vllm_config.quant_config,
            prefix=maybe_prefix(prefix, "lm_head"),
        )  # fmt: skip
        self.is_tied = config.tie_word_embeddings
        if self.is_tied:
            self.lm_head = self.lm_head.tie_weights(self.model.embed_tokens)
        self.logits_processor = LogitsProcessor(config.vocab_size)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """(N,) to (N, hidden)."""
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (N, hidden); ``positions`` (N,) begin at 0 in each text."""
        return self.model(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """(N, hidden) to (N, vocabulary)."""
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the checkpoint's tensors; the names of the parameters that they filled."""
        skipped = ["lm_head."] if self.is_tied else []
        return AutoWeightsLoader(self, ignore_unexpected_prefixes=skipped).load_weights(weights)


def _block(settings: VllmConfig, index: int, prefix: str) -> Block:
    """A block with vLLM's linear layers and attention, its weights not yet filled."""
    config: AntiphaseConfig = settings.model_config.hf_config
    processes = get_tensor_model_parallel_world_size()
    with torch.device("meta"):
        block = Block(config, index)
    layer = block.self_attn
    sizes = paged_sizes(layer, processes=processes)
    own = Attention(
        sizes.queries, sizes.width, layer.scaling, num_kv_heads=sizes.groups, cache_config=settings.cache_config,
        quant_config=settings.quant_config, per_layer_sliding_window=layer.sliding_window,
        prefix=f"{prefix}.self_attn.attn",
    )  # fmt: skip
    plan = tensor_plan(config) or {}
    for path, module in [*block.named_modules()]:
        if isinstance(module, nn.Linear):
            style = next((style for name, style in plan.items() if fnmatch(f"layers.{index}.{path}", name)), "")
            block.set_submodule(path, DIVIDED.get(style, ReplicatedLinear)(
                module.in_features, module.out_features, bias=module.bias is not None, return_bias=False,
                quant_config=settings.quant_config, prefix=f"{prefix}.{path}",
            ))  # fmt: skip
    block._apply(lambda held: torch.empty_like(held, device=torch.get_default_device()) if held.is_meta else held)
    layer.add_module("paged", paged := PagedAttention(own, sizes.width))
    vars(layer)["attention_function"] = lambda: paged
    # Of what vLLM reads from the configuration, some backends size their buffers by these
    described = settings.model_config.model_arch_config
    described.head_size, described.total_num_kv_heads = sizes.width, sizes.groups * processes
    described.total_num_attention_heads = sizes.queries * processes
    return block
