"""Texts to look at: their tokens, how many may be read, and the words that a page shows for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from antiphase.base.errors import InputError, named
from antiphase.lab.measures.look import EXACT, LONGEST, Token, TokenSequence
from antiphase.lab.scoring.lengths import context_length
from antiphase.lab.scoring.loading import LoadedModel

SEGMENT_SHOWN = 40
"""Letters of a segment that are shown."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How a model's tokenizer reads texts, named as its arguments: ``text``, ``text_target`` of encoder–decoders."""

    name: str
    """Of the model."""
    tokenizer: PreTrainedTokenizerBase
    length: int
    """Largest number of tokens."""
    truncate: bool
    """Whether a longer text is cut."""

    def check(self, texts: Mapping[str, str | None], *, is_pair: bool) -> None:
        """What can be seen without the model's weights.

        Raises:
            InputError: a target is missing or not needed, or a text has no tokens or too many.
        """
        has_target = texts.get("text_target") is not None
        if is_pair and not has_target:
            raise InputError(
                f"{named('text_target')} is missing: {self.name} has an encoder and a decoder; give the text that it "
                "writes"
            )
        if not is_pair and has_target:
            raise InputError(
                f"{named('text_target')} is only for encoder–decoders; {self.name} has no encoder and decoder; remove "
                "it"
            )
        for field, text in texts.items():
            if text is not None:
                self._check_length(field, len(self._tokens(field, text)[0]), None)

    def encoded(self, loaded: LoadedModel, field: str, text: str, entries: int | None) -> tuple[Tensor, str]:
        """Token ids (1, N) of a text, and the text that they stand for.

        Args:
            entries: vocabulary size, by default the configuration's.

        Raises:
            InputError: there are too many tokens, or the model knows none of them.
        """
        positions = context_length(loaded.model)
        listed, text = self._tokens(field, text, positions)
        self._check_length(field, len(listed), positions)
        ids = torch.tensor([listed])
        if set(ids[0].tolist()) <= set(self.tokenizer.all_special_ids):  # padding stands for unknown symbols
            words = sorted(set(self.tokenizer.get_vocab()) - set(self.tokenizer.all_special_tokens))
            raise InputError(
                f"{named(field)} holds no word that {self.name} knows; give words of its own vocabulary, such as "
                f"{' '.join(words[:: len(words) // 3 + 1])}"
            )
        known = entries or getattr(loaded.model.config, "vocab_size", None)
        if known is not None and int(ids.max()) >= known:
            raise InputError(
                f"{named(field)} has the token id {int(ids.max())}, but {self.name} knows {known} on this side; give "
                "the tokenizer that it was trained with"
            )
        return ids, text

    def sequence(self, text: str, ids: Tensor) -> TokenSequence:
        """A text and its tokens (1, N)."""
        return TokenSequence(text=text, tokens=tokens_of(self.tokenizer, text, ids[0]))

    def _tokens(self, field: str, text: str, most: int | None = None) -> tuple[list[int], str]:
        """Token ids, at most ``most`` or ``length`` of them where longer texts are cut, and the text of them."""
        limit = self.length if most is None else min(self.length, most)
        ids: list[int] = self.tokenizer(**{field: text})["input_ids"]
        if not self.truncate or len(ids) <= limit:
            return ids, text
        kept = limit - self.tokenizer.num_special_tokens_to_add()
        ends = [len(text) * (number + 1) // len(ids) for number in range(len(ids))]  # of a tokenizer without offsets
        if self.tokenizer.is_fast:
            places = self.tokenizer(**{field: text}, return_offsets_mapping=True)["offset_mapping"]
            ends = [end for start, end in places if start < end]
        while len(ids) > limit:  # a shorter text may have other tokens at its end
            if kept < 1:
                raise InputError(f"{named('length', str(limit))} holds no token of the text; raise it")
            ids, kept = self.tokenizer(**{field: text[: ends[kept - 1]]})["input_ids"], kept - 1
        return ids, text[: ends[kept]]

    def _check_length(self, field: str, count: int, positions: int | None) -> None:
        if count == 0:
            raise InputError(f"{named(field)} has no token in this model's tokenizer; give a sentence to look at")
        if count > self.length:
            remedies = [named("length", str(EXACT if count <= EXACT else LONGEST))] if count <= LONGEST else []
            remedies += [f"{named('truncate')} to look at its beginning", "a shorter text"]
            measured = "" if count <= LONGEST else "; `antiphase probe` measures long texts"
            raise InputError(
                f"{named(field)} has {count} tokens, more than the {self.length} of {named('length')}; give "
                f"{' or '.join(remedies)}{measured}"
            )
        if positions is not None and count > positions:
            raise InputError(
                f"{named(field)} has {count} tokens, more than the {positions} positions of {self.name}; give "
                f"{named('truncate')} or a shorter text"
            )


def tokens_of(tokenizer: PreTrainedTokenizerBase, text: str, ids: Tensor) -> list[Token]:
    """The tokens with their texts and words.

    A token for only some bytes of a character is shown as ``日[1/3]``, the first of its three tokens, or as its piece
    if the tokenizer does not give the character. Words are those of the tokenizer's pre-tokenization.
    """
    listed = ids.tolist()
    texts = [tokenizer.decode([number]) for number in listed]
    pieces = tokenizer.convert_ids_to_tokens(listed)
    words: list[int | None] = [None] * len(listed)
    places: list[tuple[int, int]] = [(0, 0)] * len(listed)
    if tokenizer.is_fast:
        encoded = tokenizer(text, return_offsets_mapping=True)
        words, places = encoded.word_ids(), encoded["offset_mapping"]
    labels = []
    for index, (piece, shown, place) in enumerate(zip(pieces, texts, places, strict=True)):
        if shown and "\ufffd" not in shown:
            labels.append(shown)
        elif shown and place[0] < place[1] and places.count(place) > 1:  # without text: a space put before the text
            first = places.index(place)
            labels.append(f"{text[slice(*place)]}[{index - first + 1}/{places.count(place)}]")
        else:
            labels.append(piece)
    return [
        Token(id=number, piece=piece, text=label, word=word)
        for number, piece, label, word in zip(listed, pieces, labels, words, strict=True)
    ]


def by_segments(sequence: TokenSequence, size: int) -> TokenSequence:
    """The text with ``size`` tokens in a row as one, shown by where it begins and its first and last words."""
    found = []
    for start in range(0, len(sequence.tokens), size):
        texts = [token.text for token in sequence.tokens[start : start + size]]
        words = "".join(texts)
        shown = (
            words if len(words) <= SEGMENT_SHOWN else f"{words[: SEGMENT_SHOWN // 2]} … {words[-SEGMENT_SHOWN // 2 :]}"
        )
        found.append(Token(id=start, piece=f"{start}–{start + len(texts) - 1}", text=f"{shown} ", word=None))
    return TokenSequence(text=sequence.text, tokens=found)
