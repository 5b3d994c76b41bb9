"""The named encoder–decoders of ``antiphase translate``: their sizes and training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from transformers import PreTrainedTokenizerBase

from antiphase.lab.lineage.models.configs import ClassicConfig, SequenceToSequenceConfig
from antiphase.lab.lineage.models.sequence_to_sequence import SequenceToSequenceForConditionalGeneration
from antiphase.lab.lineage.named_models import NamedModel
from antiphase.lab.lineage.training.translator import TranslatorTraining
from antiphase.lab.text.tokenization import id_count
from antiphase.models.initialization import seeded


@dataclass(frozen=True, kw_only=True)
class Translator(NamedModel):
    """An encoder–decoder's configuration, except for its vocabulary, and its training settings."""

    given_by_data: ClassVar[Mapping[str, Any]] = {
        "vocab_size": None, "source_vocab_size": None, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "is_causal": True, "is_encoder_decoder": True,
    }  # fmt: skip
    config: type[ClassicConfig] = SequenceToSequenceConfig
    training: TranslatorTraining = field(default_factory=TranslatorTraining)

    def build(self, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> SequenceToSequenceForConditionalGeneration:
        """A model for the tokenizer, which is used for both sides, with random weights that depend only on the seed.

        Raises:
            InputError: a size is invalid; the message names the field.
        """
        config = SequenceToSequenceConfig(
            **self.sizes, vocab_size=id_count(tokenizer), pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        )  # fmt: skip
        model = seeded(lambda: SequenceToSequenceForConditionalGeneration(config), seed)
        model.generation_config.max_length = config.max_position_embeddings  # else `generate` stops after 20 tokens
        return model


def _pair(attention_type: str) -> Translator:
    return Translator(
        sizes={
            "attention_type": attention_type, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "mlp_ratio": 2.0, "norm_position": "pre", "max_position_embeddings": 128,
        },
    )  # fmt: skip


TRANSLATORS: dict[str, Translator] = {
    "transformer": _pair("softmax"),
    "differential": _pair("differential"),
    "differential_v2": _pair("differential_v2"),
}
"""By name in ``--models``; they differ only in their attention, including cross-attention."""
