"""Tokenizers, from a folder, a GGUF file or the Hub; their code is never run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from antiphase.base.errors import InputError, brief, named
from antiphase.base.files import read_json
from antiphase.models.sources.failures import loading
from antiphase.models.sources.folders import check_files, is_local
from antiphase.models.sources.gguf import (
    check_merges,
    check_space,
    check_splits,
    gguf_place,
    is_gguf,
    read_header,
    split_digits,
)

PROBE = "The quick brown fox didn't jump over 42 lazy dogs, unbelievably más;\n\t中文 😀"
"""What every tokenizer is tried on: many merges, letters of two scripts, digits, white space, a character of four
bytes.
"""
LARGEST = 1 << 24
"""Largest number of tokens, or of places in a text, that a tokenizer's files may name."""
REPEATED = 4
"""Times that it is encoded again, to see the same tokens."""


def load_tokenizer(name_or_path: str, *, field: str = "data.tokenizer") -> PreTrainedTokenizerBase:
    """The tokenizer of a local folder or of a repository of the Hugging Face Hub; code in it is never run.

    Raises:
        InputError: there is none, it is broken, needs its own code or draws tokens at random, or the Hub is out of
            reach.
    """
    if is_gguf(name_or_path):
        return _gguf_tokenizer(name_or_path, field)
    path = Path(os.path.expanduser(name_or_path))
    local = bool(name_or_path) and path.exists()  # Path("") is the working directory
    if local and not path.is_dir():
        raise InputError("this is a file", "give the folder that holds tokenizer.json", field=field, path=name_or_path)
    if not local and (not name_or_path or is_local(name_or_path, path)):
        raise InputError("there is no such folder", "check the path", field=field, path=name_or_path)
    if local:
        check_files(path, field)
        _check_numbers(path, field)
    where = "this folder" if local else "the Hugging Face Hub"
    remedy = "give a folder with tokenizer.json or a Hub name (a conversion can write one beside the model)"
    with loading(f"{named(field, name_or_path)}: no tokenizer could be loaded from {where}", remedy):
        tokenizer = AutoTokenizer.from_pretrained(str(path) if local else name_or_path, trust_remote_code=False)
        if not isinstance(tokenizer.model_max_length, int | float):
            raise TypeError(f"model_max_length must be a number, got {tokenizer.model_max_length!r}")
    _try_out(tokenizer, named(field, name_or_path))
    check_fixed(tokenizer, named(field, name_or_path))
    return cast(PreTrainedTokenizerBase, tokenizer)


def _check_numbers(folder: Path, field: str) -> None:
    """Compare numbers with those of real tokenizers, before a class makes as many tokens, or pads to that length.

    Raises:
        InputError: one is larger than any vocabulary and any text.
    """
    remedy = "save the tokenizer once more"
    for file, section in (("tokenizer_config.json", None), ("tokenizer.json", "padding")):
        if not (folder / file).is_file():
            continue
        found = read_json(folder / file, field, remedy)
        waiting: list[tuple[str, Any]] = list((found if section is None else {section: found.get(section)}).items())
        while waiting:  # without recursion, which a file can exhaust
            name, value = waiting.pop()
            if isinstance(value, dict):
                waiting += value.items()
            elif isinstance(value, int | float) and value > LARGEST and name != "model_max_length":
                raise InputError(
                    f"{name} must be at most {LARGEST}, got {brief(value)}", remedy, field=field, path=folder / file
                )


def _try_out(tokenizer: PreTrainedTokenizerBase, place: str) -> None:
    """Encode and decode a text: some tokenizers load and then fail on any text, or on one of other words.

    Raises:
        InputError: it cannot be encoded.
    """
    remedy = "give a tokenizer that takes any text, with an unknown token where its words do not cover all of them"
    with loading(f"{place}: its tokenizer cannot encode a text", remedy):
        for special in (False, True):
            tokenizer.decode(tokenizer(PROBE, add_special_tokens=special)["input_ids"])


def check_fixed(tokenizer: PreTrainedTokenizerBase, place: str) -> None:
    """Check that a text always becomes the same tokens: no part of a tokenizer that was sampled in training still is.

    Raises:
        InputError: it draws merges or segmentations at random, so that every reading would give other figures.
    """
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    drawn = {
        "dropout": bool(getattr(model, "dropout", None)),
        "enable_sampling": bool((getattr(tokenizer, "sp_model_kwargs", None) or {}).get("enable_sampling")),
    }
    first = tokenizer(PROBE)["input_ids"]
    named = [name for name, is_drawn in drawn.items() if is_drawn]
    if named or any(tokenizer(PROBE)["input_ids"] != first for _ in range(REPEATED)):
        what = f"its {named[0]} is set" if named else "repeated readings of a text differ"
        raise InputError(
            f"{place}: this tokenizer draws the tokens of a text at random ({what}), so no figure could be repeated",
            "set that to null in its tokenizer.json or tokenizer_config.json",
        )


def _gguf_tokenizer(name: str, field: str) -> PreTrainedTokenizerBase:
    header = read_header(name, field)
    check_merges(header, named(field, name))
    check_splits(header, named(field, name))
    # AutoTokenizer reads the configuration once more, which takes twenty times as long, to come to this very class
    is_bpe = (header.metadata["general.architecture"], header.metadata.get("tokenizer.ggml.model")) == ("llama", "gpt2")
    kind = PreTrainedTokenizerFast if is_bpe else AutoTokenizer
    with loading(f"{named(field, name)}: no tokenizer could be read from it"):
        tokenizer = kind.from_pretrained(**gguf_place(name))
    check_space(tokenizer, header, named(field, name))
    split_digits(tokenizer, header)
    _try_out(tokenizer, named(field, name))
    return cast(PreTrainedTokenizerBase, tokenizer)


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, place: str) -> None:
    """That the model has an embedding for every word that a text can become.

    Special tokens beyond it are allowed: some published tokenizers bring those of a larger relative along.

    Raises:
        InputError: as ``check_rows``, or the model reads text only next to something else.
    """
    if model.config.is_encoder_decoder:  # each side has a vocabulary of its own, against which its text is checked
        return
    try:
        embedding = model.get_input_embeddings()
    except NotImplementedError as error:
        raise InputError(
            f"{place} is of type {model.config.model_type}, which reads text only together with other inputs",
            "give its text model, saved by itself",
        ) from error
    check_rows(tokenizer, embedding, place)


def check_rows(tokenizer: PreTrainedTokenizerBase, embedding: nn.Module, place: str) -> None:
    """As ``check_tokenizer``, given what embeds the tokens of a text.

    Raises:
        InputError: the tokenizer has words beyond the embedding.
    """
    if not isinstance(embedding, nn.Embedding):  # characters as one-hot vectors, pictures, sounds
        return
    special = tokenizer.added_tokens_decoder
    beyond = [
        word for word, row in tokenizer.get_vocab().items() if row >= embedding.num_embeddings and row not in special
    ]
    if beyond:
        raise InputError(
            f"{place}: its tokenizer is another model's, with {len(beyond)} words beyond the model's "
            f"{embedding.num_embeddings}, such as {min(beyond)!r}",
            "put the model's own tokenizer there",
        )
