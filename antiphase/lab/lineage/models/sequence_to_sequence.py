"""The encoder–decoder of 2017 for pairs of texts (Vaswani et al., 1706.03762, section 3.1), and its alignment."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils import can_return_tuple

from antiphase.attention.caches import CACHE, by_either_name
from antiphase.base.errors import InputError
from antiphase.lab.lineage.models.configs import SequenceToSequenceConfig
from antiphase.lab.lineage.models.vanilla import VanillaModel, VanillaPreTrainedModel
from antiphase.models.heads import VocabularyHead
from antiphase.ops.shapes import IGNORED_TARGET


class SequenceToSequencePreTrainedModel(VanillaPreTrainedModel):
    """Base class with the encoder–decoder's configuration."""

    config: SequenceToSequenceConfig
    config_class = SequenceToSequenceConfig

    def _embedder(self, *, source: bool) -> VanillaModel:
        """The part that has the embeddings of one side."""
        return getattr(getattr(self, "model", self), "encoder" if source else "decoder")

    def get_input_embeddings(self) -> nn.Module:
        """The embeddings of the target text, whose vocabulary the head predicts."""
        return self._embedder(source=False).get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embeddings of the target text."""
        self._embedder(source=False).set_input_embeddings(value)

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Module:
        """The target's vocabulary, and the source's too if both have the same size, as with one tokenizer for both.

        Raises:
            InputError: the model has one-hot vectors, which have no weights.
        """
        if self.config.embeddings == "one_hot":
            raise InputError("one-hot embeddings cannot be resized; use embeddings=learned")
        if self.config.source_vocab_size == self.config.vocab_size:
            encoder = self._embedder(source=True)
            resized = self._get_resized_embeddings(
                encoder.get_input_embeddings(), new_num_tokens, pad_to_multiple_of, mean_resizing
            )
            encoder.set_input_embeddings(resized)
            self.config.source_vocab_size = resized.num_embeddings
        return super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)


class SequenceToSequenceModel(SequenceToSequencePreTrainedModel):
    """An encoder, and a decoder whose layers also attend to the encoder's last states; no head."""

    def __init__(self, config: SequenceToSequenceConfig) -> None:
        super().__init__(config)
        self.encoder = VanillaModel(config, is_encoder=True, vocab_size=config.source_vocab_size)
        self.decoder = VanillaModel(config, has_context=True)
        self.post_init()

    @by_either_name
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        """The decoder's hidden states (B, N, hidden).

        Args:
            input_ids: (B, M), the source text; not needed with ``encoder_outputs``.
            attention_mask: (B, M), 1 at real tokens of the source.
            decoder_input_ids: (B, N), the target text, beginning with the start token.
            decoder_attention_mask: (B, N), including tokens of earlier calls.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask=attention_mask, use_cache=False, **kwargs)
        outputs = self.decoder(
            decoder_input_ids, attention_mask=decoder_attention_mask, past_key_values=past_key_values,
            encoder_hidden_states=encoder_outputs.last_hidden_state, encoder_attention_mask=attention_mask,
            use_cache=use_cache, **kwargs,
        )  # fmt: skip
        return Seq2SeqModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            **{CACHE: outputs.get(CACHE)},
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class SequenceToSequenceForConditionalGeneration(SequenceToSequencePreTrainedModel, VocabularyHead, GenerationMixin):
    """The encoder–decoder with a language-model head, which generates the target text from the source text."""

    model_class = SequenceToSequenceModel
    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.decoder.embed_tokens.weight"}

    def get_encoder(self, *args: Any, **kwargs: Any) -> VanillaModel:
        """The encoder, which ``generate`` calls once."""
        return self.model.encoder

    @by_either_name
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits (B, N, vocabulary), and the mean loss in nats if ``labels`` (B, N) are given.

        ``labels`` are the target text without its start token; -100, the padding of data collators, is ignored.
        ``decoder_input_ids`` are derived from them unless they are given too.

        Raises:
            ValueError: neither ``labels`` nor ``decoder_input_ids`` are given.
        """
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("labels or decoder_input_ids must be given: the target text or its beginning")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
            if decoder_attention_mask is None:
                decoder_attention_mask = nn.functional.pad((labels[:, :-1] != IGNORED_TARGET).long(), (1, 0), value=1)
        outputs = self.model(
            input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask, encoder_outputs=encoder_outputs,
            past_key_values=past_key_values, use_cache=use_cache if labels is None else False, **kwargs,
        )  # fmt: skip
        logits = self.lm_head(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            loss = self.loss_function(  # the loss of causal models; `shift_labels` means that they are already shifted
                logits=logits, labels=None, shift_labels=labels, vocab_size=self.vocab_size, **kwargs
            )
        return Seq2SeqLMOutput(
            loss=loss, logits=logits, **{CACHE: outputs.get(CACHE)},
            decoder_hidden_states=outputs.decoder_hidden_states, decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions, encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states, encoder_attentions=outputs.encoder_attentions,
        )  # fmt: skip

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """(B, N): the start token, then the labels except the last, with padding instead of -100."""
        shifted = nn.functional.pad(labels[:, :-1], (1, 0), value=self.config.bos_token_id)
        padding = self.config.pad_token_id
        assert padding is not None  # checked by the configuration
        return shifted.masked_fill(shifted == IGNORED_TARGET, padding)

    @torch.no_grad()
    def alignment(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Alignment: cross-attention weights of each target token, when it is predicted, over the source tokens.

        Args:
            input_ids: (B, M), the source text; ``attention_mask`` (B, M) is 1 at its real tokens.
            labels: (B, N), the target text without its start token, -100 at padding.

        Returns:
            (layers, B, heads, N, M) in fp32; row n belongs to the prediction of token n. In differential models they
            are signed, and a row sums to 1 - λ.
        """
        before = self.config._attn_implementation
        self.set_attn_implementation("eager")
        try:
            outputs = self(input_ids, attention_mask=attention_mask, labels=labels, output_attentions=True)
        finally:
            self.set_attn_implementation(before)
        return torch.stack(outputs.cross_attentions).float()
