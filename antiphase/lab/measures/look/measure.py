"""Implements ``antiphase look``: attention of every layer and head on one text, from request to record."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from antiphase.attention.maps import AttentionMaps, attention_maps
from antiphase.base.errors import InputError, named
from antiphase.base.files import read_json, read_text, text_of_input
from antiphase.base.folders.ownership import new_folder
from antiphase.base.records import GIVE_A_RUN, Record
from antiphase.lab.measures.look import (
    LONGEST,
    LearningCurve,
    Look,
    LookSettings,
    StoredMaps,
    StoredMask,
    Token,
    TokenSequence,
)
from antiphase.lab.measures.look.map_codes import encode
from antiphase.lab.scoring.lengths import context_length
from antiphase.lab.scoring.loading import LoadedModel, load_model, origins, read_without_weights, refused_by_model
from antiphase.lab.training.device import loading_options
from antiphase.layers.positions import sinusoidal_positions
from antiphase.ops.shapes import positions_mask

POSITIONS = (50, 128)
"""Positions and width of the matrix of sinusoidal positions."""
LONGEST_NAME = 256
"""Letters of a text that may be the name of a file."""
TEXT = "text"
"""Name of the only sequence, for queries and keys. Maps between two sequences name both."""
SOURCE, TARGET, SO_FAR = "source", "target", "target so far"
"""Sequences of an encoder–decoder: its two texts, and the decoder's input when it predicts each token of the target."""
SIDES = {None: (TEXT, TEXT), "cross": (TARGET, SOURCE), "encoder": (SOURCE, SOURCE), "decoder": (SO_FAR, SO_FAR)}
"""Sequences of queries and keys by part of the model, in the order of the record: cross-attention comes first."""


def evaluate(
    request: LookSettings,
    output: Path,
    *,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[float, int], None] = lambda done, count: None,
) -> Record:
    """Compute every map of every layer on the text, in 8 bits (``map_codes.py``); write ``record.json`` in ``output``.

    ``values["maps"]`` lists the layers; each names its sequences of queries and keys, its mask and its arrays: codes
    (H, S, N, M), scales (H, S, N) and, if S is 2, λ (H, N).

    Raises:
        InputError: the model or text cannot be used, attention cannot be observed, or the folder is not empty.
    """
    request.check()
    started = time.perf_counter()
    text = text_of(request, say)
    with new_folder(output):
        runs = _runs_of(Path(request.name))  # before anything that takes time
        config, tokenizer = read_without_weights(request.name)
        is_pair = bool(getattr(config, "is_encoder_decoder", False))
        if is_pair and request.target is None:
            raise InputError(
                f"--target is missing: {request.name} has an encoder and a decoder; give the text that it writes"
            )
        if not is_pair and request.target is not None:
            raise InputError(
                f"--target is only for encoder–decoders; {request.name} has no encoder and decoder; remove it"
            )
        texts = {"text": text} | ({} if request.target is None else {"text_target": request.target})
        for side, given in texts.items():
            _check_length(request, side, len(_tokens(tokenizer, request, side, given)[0]), None)
        loaded = load_model(request.name, **loading_options(request), with_head=False)
        config = loaded.model.config
        ids, text = _encoded(loaded, request, "text", text, getattr(config, "source_vocab_size", None))
        read, sequences = None, {TEXT: _sequence(loaded, text, ids)}
        if request.target is not None:
            target, written = _encoded(loaded, request, "text_target", request.target, None)
            read, sequences = _pair(loaded, (text, ids), (written, target))
        with refused_by_model(request.name):
            found = attention_maps(loaded.model, ids, read)
        order = list(SIDES)
        maps, masks, arrays = _stored(sorted(found, key=lambda one: order.index(one.part)))
        if getattr(config, "positions", None) == "sinusoidal":
            arrays["positions"] = sinusoidal_positions(torch.arange(POSITIONS[0]), POSITIONS[1]).float().numpy()
        result = Look(
            model=request.name, model_type=config.model_type, attention_type=getattr(config, "attention_type", None),
            sequences=sequences, maps=maps, masks=masks, runs=runs,
        )  # fmt: skip
        return result.save(output, request, arrays, seconds=time.perf_counter() - started, **origins([loaded]))


def text_of(request: LookSettings, say: Callable[[str], None] = lambda message: None) -> str:
    """The text to look at.

    Raises:
        InputError: its file cannot be read.
    """
    if request.text_file == "-":
        return text_of_input("text_file", "pipe a text into the command")
    if request.text_file is not None:
        return read_text(request.text_file, "text_file", "give a file of text")
    assert request.text is not None
    if len(request.text) < LONGEST_NAME and Path(request.text).is_file():
        say(f"--text is the name of a file and looked at as it stands; for its content give --text-file {request.text}")
    return request.text


def _flag_of(request: LookSettings, side: str) -> str:
    """The flag that gave a text; ``side`` is the tokenizer's argument, ``text`` or ``text_target``."""
    return "--target" if side == "text_target" else "--text" if request.text_file is None else "--text-file"


def _tokens(
    tokenizer: PreTrainedTokenizerBase, request: LookSettings, side: str, text: str, most: int | None = None
) -> tuple[list[int], str]:
    """Token ids, at most ``most`` or --length of them with --truncate, and the text that they stand for."""
    ids: list[int] = tokenizer(**{side: text})["input_ids"]
    limit = request.length if most is None else min(request.length, most)
    if not request.truncate or len(ids) <= limit:
        return ids, text
    kept = limit - tokenizer.num_special_tokens_to_add()
    ends = [len(text) * (number + 1) // len(ids) for number in range(len(ids))]  # of a tokenizer without offsets
    if tokenizer.is_fast:
        places = tokenizer(**{side: text}, return_offsets_mapping=True)["offset_mapping"]
        ends = [end for start, end in places if start < end]
    while len(ids) > limit:  # a shorter text may have other tokens at its end
        if kept < 1:
            raise InputError(f"--length {limit} holds no token of the text; raise it")
        ids, kept = tokenizer(**{side: text[: ends[kept - 1]]})["input_ids"], kept - 1
    return ids, text[: ends[kept]]


def _encoded(
    loaded: LoadedModel, request: LookSettings, side: str, text: str, entries: int | None
) -> tuple[Tensor, str]:
    """Token ids (1, N) of a text and the text; ``entries``: vocabulary size, by default the configuration's.

    Raises:
        InputError: there are too many tokens, or the model knows none of them.
    """
    flag, positions = _flag_of(request, side), context_length(loaded.model)
    listed, text = _tokens(loaded.tokenizer, request, side, text, positions)
    _check_length(request, side, len(listed), positions)
    ids = torch.tensor([listed])
    if set(ids[0].tolist()) <= set(loaded.tokenizer.all_special_ids):  # padding stands for unknown symbols
        words = sorted(set(loaded.tokenizer.get_vocab()) - set(loaded.tokenizer.all_special_tokens))
        raise InputError(
            f"{flag} holds no word that {request.name} knows; give words of its own vocabulary, such as "
            f"{' '.join(words[:: len(words) // 3 + 1])}"
        )
    known = entries or getattr(loaded.model.config, "vocab_size", None)
    if known is not None and int(ids.max()) >= known:
        raise InputError(
            f"{flag} has the token id {int(ids.max())}, but {request.name} knows {known} on this side; its folder "
            "holds a tokenizer of another vocabulary"
        )
    return ids, text


def _sequence(loaded: LoadedModel, text: str, ids: Tensor) -> TokenSequence:
    return TokenSequence(text=text, tokens=tokens_of(loaded.tokenizer, text, ids[0]))


def _pair(
    loaded: LoadedModel, source: tuple[str, Tensor], target: tuple[str, Tensor]
) -> tuple[Tensor, dict[str, TokenSequence]]:
    """The decoder's input (1, N), which is the start token and the target without its last token; and all sequences."""
    config = loaded.model.config
    start = getattr(config, "decoder_start_token_id", None)
    start = getattr(config, "bos_token_id", None) if start is None else start
    if start is None:
        raise InputError(f"{named('model', loaded.name)}: its configuration has no decoder_start_token_id")
    read = torch.cat([torch.tensor([[start]]), target[1][:, :-1]], 1)
    written = _sequence(loaded, *target)
    piece = loaded.tokenizer.convert_ids_to_tokens(start)
    begin = Token(id=start, piece=piece, text=piece, word=None)
    return read, {
        SOURCE: _sequence(loaded, *source),
        TARGET: written,
        SO_FAR: TokenSequence(text=target[0], tokens=[begin, *written.tokens[:-1]]),
    }


def _check_length(request: LookSettings, side: str, count: int, positions: int | None) -> None:
    """
    Raises:
        InputError: there are no tokens, or more than --length or the model's positions.
    """
    flag = _flag_of(request, side)
    if count == 0:
        raise InputError(f"{flag} has no token in this model's tokenizer; give a sentence to look at")
    if count > request.length:
        remedies = [f"--length {LONGEST}"] if count <= LONGEST else []
        remedies += ["--truncate to look at its beginning", "a shorter text"]
        measured = "" if count <= LONGEST else "; `antiphase probe` measures long texts"
        raise InputError(
            f"{flag} has {count} tokens, more than the {request.length} of --length; give {' or '.join(remedies)}"
            f"{measured}"
        )
    if positions is not None and count > positions:
        raise InputError(
            f"{flag} has {count} tokens, more than the {positions} positions of {request.name}; give --truncate or a "
            "shorter text"
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
            kind, window = mask_kind(one.visible)
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


def _runs_of(folder: Path) -> list[LearningCurve]:
    """The learning curve of a model that was trained here."""
    if not (folder / "record.json").is_file():
        return []
    if not {"kind", "values", "format"} <= read_json(folder / "record.json", "", GIVE_A_RUN).keys():
        return []  # somebody else's file
    trained = Record.load(folder)
    if trained.kind in ("classify", "translate"):
        runs = trained.values["runs"]
        best = trained.values.get("best", runs[0]["folder"])  # the best run's model, for the folder of a study
        return [
            LearningCurve(arm=run["model"], seed=run["seed"], curve=run["curve"])
            for run in runs
            if run["folder"] == best
        ]
    name = trained.values.get("arm") or trained.config.get("model", {}).get("attention_type") or "model"
    seed = trained.seeds[0] if trained.seeds else None
    curve = LearningCurve(arm=name, seed=seed, curve=trained.values.get("curve") or [])
    return [curve] if trained.kind == "train" else []
