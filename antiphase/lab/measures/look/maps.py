"""Attention of every layer and head on one text, in Python: ``antiphase.look``. The command writes what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from antiphase.attention.hooks import is_encoder_decoder
from antiphase.attention.long_maps import PEAKS, SEGMENTS, SPAN, segment_maps, span_maps
from antiphase.attention.maps import AttentionMaps, attention_maps
from antiphase.base.errors import InputError, named, nearest, renamed
from antiphase.base.modes import evaluation_mode
from antiphase.base.records import Record
from antiphase.lab.measures.look import (
    EXACT,
    KEYS,
    LARGEST,
    QUERIES,
    LearningCurve,
    Look,
    StoredMaps,
    StoredMask,
    Token,
    TokenSequence,
    check_texts,
    checked_range,
    plots,
)
from antiphase.lab.measures.look import SEGMENTS as MOST_SEGMENTS
from antiphase.lab.measures.look.map_codes import encode
from antiphase.lab.measures.look.page import framed, look_page, write_look
from antiphase.lab.measures.look.texts import Reader, by_segments
from antiphase.lab.scoring.loading import LoadedModel, refused_by_model, wrap_model
from antiphase.layers.positions import sinusoidal_positions
from antiphase.ops.shapes import positions_mask

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POSITIONS = (50, 128)
"""Positions and width of the matrix of sinusoidal positions."""
TEXT = "text"
"""Name of the only sequence, for queries and keys. Maps between two sequences name both."""
SOURCE, TARGET, SO_FAR = "source", "target", "target so far"
"""Sequences of an encoder–decoder: its two texts, and the decoder's input when it predicts each token of the target."""
SIDES = {
    None: (TEXT, TEXT), "cross": (TARGET, SOURCE), "encoder": (SOURCE, SOURCE), "decoder": (SO_FAR, SO_FAR),
    SEGMENTS: (TEXT, TEXT), PEAKS: (LARGEST, LARGEST), SPAN: (QUERIES, KEYS),
}  # fmt: skip
"""Sequences of queries and keys by part of the model, in the order of the record: cross-attention comes first."""
WHICH = ("difference", "first", "second")
"""What can be seen of a differential head."""


def look(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    text_target: str | None = None,
    *,
    length: int = 256,
    truncate: bool = False,
    queries: tuple[int, int] | None = None,
    keys: tuple[int, int] | None = None,
) -> Maps:
    """Every attention map of a model on one text, for any model of Hugging Face, encoders included.

    In a notebook the result shows an interactive page. The model is unchanged afterwards, even after an error. A text
    of more than 512 tokens is shown by at most 256 segments: the sum over a segment's keys, mean over its queries;
    ``part("peaks")`` has the largest weight of each pair of segments, and ``queries`` and ``keys`` a part token by
    token.

    Example:
        >>> maps = antiphase.look(model, tokenizer, "The cat sat on the mat.")
        >>> maps[3, 0]  # layer 3, head 0: (queries, keys), the tokens are maps.tokens
        >>> maps.plot(3, 0)
        >>> maps.save("maps.html")

    Args:
        text_target: for encoder–decoders, the text that the decoder writes.
        length: the largest number of tokens, at most 8,192.
        truncate: look at the beginning of a longer text.
        queries, keys: from which token to before which, each at most 512.

    Raises:
        InputError: the model or text cannot be used, or attention cannot be observed.
    """
    if (queries is None) != (keys is None):
        raise InputError("queries and keys are given together or not at all")
    span = {} if queries is None or keys is None else {
        "queries": checked_range("queries", queries), "keys": checked_range("keys", keys)
    }  # fmt: skip
    loaded = wrap_model(model, tokenizer)
    with evaluation_mode(model):
        return maps_of(loaded, text, text_target, length=length, truncate=truncate, **span)


def maps_of(
    loaded: LoadedModel,
    text: str,
    target: str | None,
    *,
    length: int,
    truncate: bool,
    queries: range | None = None,
    keys: range | None = None,
) -> Maps:
    """``look`` for a model in evaluation mode, under the name that it was given."""
    texts = {"text": text} | ({} if target is None else {"text_target": target})
    check_texts(texts, length)
    reader = Reader(name=loaded.name, tokenizer=loaded.tokenizer, length=length, truncate=truncate)
    reader.check(texts, is_pair=is_encoder_decoder(loaded.model))
    ids, text = reader.encoded(loaded, "text", text, getattr(loaded.model.config, "source_vocab_size", None))
    read, sequences = None, {TEXT: reader.sequence(text, ids)}
    if target is not None:
        written, target = reader.encoded(loaded, "text_target", target, None)
        read, sequences = _pair(loaded, reader, (text, ids), (target, written))
    count, segment = ids.shape[1], None
    if read is not None and (queries is not None or max(count, read.shape[1]) > EXACT):
        raise InputError(
            f"{loaded.name} has an encoder and a decoder, whose texts are looked at as a whole and up to {EXACT} tokens"
        )
    with refused_by_model(loaded.name):
        if queries is not None and keys is not None:
            for name, chosen in (("queries", queries), ("keys", keys)):
                if chosen.stop > count:
                    raise InputError(f"{named(name)} must end at {count} at most, as the text does, got {chosen.stop}")
            found = span_maps(loaded.model, ids, queries, keys)
            if not any(one.visible.any() for one in found):
                raise InputError("in no layer do these queries see any of these keys")
            tokens = sequences[TEXT].tokens
            sequences = {
                name: TokenSequence(text=text, tokens=[tokens[place] for place in chosen])
                for name, chosen in ((QUERIES, queries), (KEYS, keys))
            }
        elif count > EXACT:
            segment = -(-count // MOST_SEGMENTS)
            found = segment_maps(loaded.model, ids, segment)
            sequences = dict.fromkeys((TEXT, LARGEST), by_segments(sequences[TEXT], segment))
        else:
            found = attention_maps(loaded.model, ids, read)
    order = list(SIDES)
    found.sort(key=lambda one: order.index(one.part))
    return Maps(loaded.name, loaded.model.config, sequences, found, segment)


@dataclass(frozen=True, repr=False)
class Maps:
    """The attention maps of one text: ``maps[layer, head]`` is (queries, keys), fp32, on the CPU.

    It holds the weights that multiply the values, signed in differential heads. Layers have the model's numbers, from 0
    or, as in lists, from the end; layers without attention have no maps. Of an encoder–decoder, ``maps[layer, head]``
    is cross-attention, and ``part`` gives the maps of each side.
    """

    model: str
    """Name of the model."""
    config: PreTrainedConfig
    """The model's."""
    sequences: dict[str, TokenSequence]
    """The texts and their tokens by name."""
    found: list[AttentionMaps]
    """By layer; of an encoder–decoder, cross-attention first."""
    segment: int | None = None
    """Tokens of each row and column of a long text."""

    @property
    def layers(self) -> list[int]:
        """Numbers of the layers that have maps."""
        return [one.layer for one in self._first_part()]

    @property
    def without_attention(self) -> list[int]:
        """Numbers of the layers that have none."""
        count = getattr(self.config.get_text_config(), "num_hidden_layers", 0)
        is_pair = self.found[0].part in ("cross", "encoder", "decoder")
        own = self.layers if len(self.layers) < count and not is_pair else range(count)
        return [layer for layer in range(count) if layer not in own]

    @property
    def tokens(self) -> list[str]:
        """The tokens of the keys; of a single text, also of the queries."""
        return self._texts(1)

    @property
    def queries(self) -> list[str]:
        """The tokens of the queries."""
        return self._texts(0)

    def __getitem__(self, place: int | tuple[int, int]) -> Tensor:
        """The maps of a layer (heads, queries, keys), or the map of a layer and head (queries, keys)."""
        layer, *head = place if isinstance(place, tuple) else (place,)
        weights = self._layer(layer).weights()
        return weights[self._head(layer, head[0], len(weights))] if head else weights

    def map(self, layer: int, head: int, which: str = "difference") -> Tensor:
        """(queries, keys): of a differential head its ``difference``, or the ``first`` or ``second`` softmax map.

        Raises:
            InputError: ``which`` is no map of the head.
        """
        if which not in WHICH:
            raise InputError(f"which must be one of {', '.join(WHICH)}, got {which!r}{nearest(which, WHICH)}")
        if which == "difference":
            return self[layer, head]
        maps = self._layer(layer).maps
        if maps.shape[1] == 1:
            raise InputError(f"which is {which}, but the heads of layer {layer} have one map each", "leave it out")
        return maps[self._head(layer, head, len(maps)), WHICH.index(which) - 1]

    def lam(self, layer: int) -> Tensor | None:
        """λ of a layer's heads (heads, queries); None if they are not differential."""
        return self._layer(layer).lam

    def plot(self, layer: int, head: int, which: str = "difference", *, axes: Axes | None = None) -> Axes:
        """Draw one map and return matplotlib's axes, whose image and labels can be changed; the colour bar follows.

        Colours follow the square root of the weights.

        Args:
            which: ``difference``, ``first`` or ``second``.
            axes: where to draw; by default in a new figure of pyplot, which a notebook shows.
        """
        weights, one = self.map(layer, head, which), self._layer(layer)
        title = f"layer {one.layer}, head {head % len(one.maps)}" + (
            "" if one.lam is None else f": {which}, λ = {one.lam[self._head(layer, head, len(one.lam))].mean():.2f}"
        )
        shown = weights.masked_fill(~one.visible, torch.nan).numpy()
        return plots.one_map(shown, title, self.queries, self.tokens, axes, unit=plots.unit_of(self.segment))

    def grid(self) -> Figure:
        """A small map for each layer and head."""
        figure = plots.every_head(self.record())
        assert figure is not None
        return figure

    def part(self, name: str) -> Maps:
        """Maps of one part of an encoder–decoder: ``cross``, ``encoder`` or ``decoder``.

        Raises:
            InputError: the model has no such part.
        """
        parts = list(dict.fromkeys(str(one.part) for one in self.found))
        if name not in parts or parts == ["None"]:
            raise InputError(f"{self.model} has no part {name!r}; its parts: {', '.join(parts)}")
        return replace(self, found=[one for one in self.found if one.part == name])

    def result(self, runs: Sequence[LearningCurve] = ()) -> tuple[Look, dict[str, numpy.ndarray]]:
        """The result of ``antiphase look`` and its arrays, in 8 bits (``map_codes.py``): codes (H, S, N, M), scales
        (H, S, N) and, if S is 2, λ (H, N) for each layer.
        """
        maps, masks, arrays = _stored(self.found)
        if getattr(self.config, "positions", None) == "sinusoidal":
            arrays["positions"] = sinusoidal_positions(torch.arange(POSITIONS[0]), POSITIONS[1]).float().numpy()
        result = Look(
            model=self.model, model_type=self.config.model_type,
            attention_type=getattr(self.config, "attention_type", None), sequences=self.sequences, maps=maps,
            masks=masks, runs=list(runs), without_attention=self.without_attention or None, segment=self.segment,
        )  # fmt: skip
        return result, arrays

    def record(self) -> Record:
        """The record that the page and the figures show."""
        result, arrays = self.result()
        made = result.record()
        made.arrays, made.command = arrays, "antiphase.look(model, tokenizer, text)"
        return made

    def save(self, path: str | Path) -> Path:
        """Write the interactive page, one file that opens offline; returns its path.

        Raises:
            InputError: the name does not end in .html, the file cannot be written, or these are largest weights alone,
                which pages show beside the maps.
        """
        if self.found[0].part == PEAKS:
            raise InputError("largest weights have no page of their own; that of the whole maps shows them too")
        with renamed({"output": "path"}):
            return write_look([self.record()], Path(path))

    def _repr_html_(self) -> str | None:
        return None if self.found[0].part == PEAKS else framed(look_page([self.record()]))

    def __repr__(self) -> str:
        heads = sorted({len(one.maps) for one in self.found})
        count = len(self._first_part()) if self.segment else len(self.found)
        units = "tokens" if self.segment is None else f"segments of {self.segment} tokens"
        return (
            f"<attention maps of {self.model}: {count} layers, {' or '.join(map(str, heads))} heads, "
            f"{len(self.queries)} × {len(self.tokens)} {units}>"
        )

    def _first_part(self) -> list[AttentionMaps]:
        return [one for one in self.found if one.part == self.found[0].part]

    def _texts(self, side: int) -> list[str]:
        return [token.text for token in self.sequences[SIDES[self.found[0].part][side]].tokens]

    def _layer(self, layer: int) -> AttentionMaps:
        own = self._first_part()
        found = own[layer : layer + 1 or None] if layer < 0 else [one for one in own if one.layer == layer]
        if not found:  # IndexError, so that a loop over the maps ends
            raise IndexError(
                f"layer {layer} has no attention maps; those that have: {', '.join(map(str, self.layers))}"
            )
        if len(found) > 1:
            raise InputError(
                f"layer {layer} is passed {len(found)} times, and has maps of each", "take them from the list .found"
            )
        return found[0]

    @staticmethod
    def _head(layer: int, head: int, count: int) -> int:
        if not -count <= head < count:
            raise IndexError(f"layer {layer} has the heads 0 to {count - 1}, got {head}")
        return head


def _pair(
    loaded: LoadedModel, reader: Reader, source: tuple[str, Tensor], target: tuple[str, Tensor]
) -> tuple[Tensor, dict[str, TokenSequence]]:
    """The decoder's input (1, N), which is the start token and the target without its last token; and all sequences."""
    config = loaded.model.config
    start = getattr(config, "decoder_start_token_id", None)
    start = getattr(config, "bos_token_id", None) if start is None else start
    if start is None:
        raise InputError(f"{named('model', loaded.name)}: its configuration has no decoder_start_token_id")
    read = torch.cat([torch.tensor([[start]]), target[1][:, :-1]], 1)
    written = reader.sequence(*target)
    piece = loaded.tokenizer.convert_ids_to_tokens(start)
    begin = Token(id=start, piece=piece, text=piece, word=None)
    return read, {
        SOURCE: reader.sequence(*source),
        TARGET: written,
        SO_FAR: TokenSequence(text=target[0], tokens=[begin, *written.tokens[:-1]]),
    }


def _stored(found: list[AttentionMaps]) -> tuple[list[StoredMaps], list[StoredMask], dict[str, numpy.ndarray]]:
    """The record's entries for each layer and each mask, and their arrays; equal masks are stored once."""
    maps: list[StoredMaps] = []
    masks: list[StoredMask] = []
    kept: list[Tensor] = []
    arrays: dict[str, numpy.ndarray] = {}
    for number, one in enumerate(found):
        mask = next((index for index, other in enumerate(kept) if one.visible.equal(other)), len(kept))
        if mask == len(kept):
            kept.append(one.visible)
            arrays[f"masks.{mask}"] = one.visible.numpy()
            kind, window = ("part", None) if one.part == SPAN else mask_kind(one.visible)
            masks.append(StoredMask(array=f"masks.{mask}", kind=kind, window=window))
        heads, each = one.maps.shape[:2]
        arrays[f"maps.{number}.codes"], arrays[f"maps.{number}.scales"] = encode(one.maps.numpy())
        if one.lam is not None:
            arrays[f"maps.{number}.lambda"] = one.lam.contiguous().numpy()
        queries, keys = SIDES[one.part]
        maps.append(StoredMaps(
            layer=one.layer, heads=heads, maps_per_head=each, queries=queries, keys=keys, mask=mask,
            arrays=f"maps.{number}",
        ))  # fmt: skip
    return maps, masks, arrays


def mask_kind(visible: Tensor) -> tuple[str, int | None]:
    """Kind and window of a mask (N, M)."""
    if visible.all():
        return "global", None
    queries, keys = visible.shape
    widest = int(visible.sum(-1).max())
    for window in (None, widest):
        causal = positions_mask(queries, keys, is_causal=True, sliding_window=window, device=visible.device)
        if causal is not None and visible.equal(causal):
            return "causal", window
    reach = int(visible[0].sum()) - 1
    places = torch.arange(max(queries, keys), device=visible.device)
    if queries == keys and visible.equal((places[:, None] - places).abs() <= reach):
        return "local", 2 * reach + 1
    return "other", None
