"""Pretrained word vectors from a text file, as initial embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antiphase.base.errors import InputError, named
from antiphase.base.files import reading


@torch.no_grad()
def set_word_vectors(
    model: PreTrainedModel, path: str | Path, vocabulary: Mapping[str, int], *, field: str = ""
) -> int:
    """Replace the embeddings of the words in a file of word vectors; return the number of words replaced.

    The other words keep their random directions and are scaled to the same standard deviation (Kim 2014, 1408.5882,
    section 4). All embeddings stay trainable; ``model.get_input_embeddings().requires_grad_(False)`` freezes them.

    Example:
        >>> antiphase.set_word_vectors(model, "glove.6B.300d.txt", tokenizer.get_vocab())

    Args:
        model: a model whose learned embeddings have the width of the vectors.
        path: a text file in the format of GloVe (a word and its numbers on each line) or word2vec (the same after a
            line with the number of words and the width).
        vocabulary: id of each word, for example ``tokenizer.get_vocab()``.
        field: the argument that gave the file, for messages.

    Raises:
        InputError: the file is missing, a line has another width or no numbers (the message names file and line), none
            of the words is in it, or the model has no learned embeddings.
    """
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding):
        raise InputError("word vectors need a model with learned embeddings; set embeddings to learned")
    found = read_word_vectors(path, vocabulary, width=embedding.embedding_dim, field=field)
    if not found:
        raise InputError(
            f"{named(field, path)}: contains none of the {len(vocabulary)} words of the vocabulary; check that its "
            f"vectors are {embedding.embedding_dim} wide, as the model's embeddings are"
        )
    rows = torch.tensor(sorted(found), device=embedding.weight.device)
    vectors = torch.stack([found[row] for row in sorted(found)]).to(embedding.weight)
    others = torch.ones(embedding.num_embeddings, dtype=torch.bool, device=embedding.weight.device)
    others[rows] = False
    if embedding.padding_idx is not None:
        others[embedding.padding_idx] = False
    if bool(others.any()):
        embedding.weight[others] *= vectors.std() / embedding.weight[others].std()
    embedding.weight[rows] = vectors
    return len(rows)


def read_word_vectors(
    path: str | Path, vocabulary: Mapping[str, int], *, width: int, field: str = ""
) -> dict[int, Tensor]:
    """{id: (width,) fp32} for the words in ``vocabulary``; if a word has several lines, the first is used.

    Raises:
        InputError: the file is missing, or a line has another number of values or no numbers.
    """
    found: dict[int, Tensor] = {}
    with reading(path, field, "give a text file of word vectors"), open(path, "rb") as file:
        for number, line in enumerate(file, start=1):  # bytes: str.splitlines would split some words
            # From the end, because some words of GloVe contain spaces.
            word, *values = line.strip(b" \t\r\n").replace(b"\t", b" ").rsplit(b" ", width)
            if number == 1 and _is_header(line):
                _check_header(path, line, width)
                continue
            if len(values) != width:
                raise InputError(
                    f"{path}, line {number}: {len(values)} numbers, but the model's embeddings are {width} wide; "
                    "choose other vectors or another width"
                )
            row = vocabulary.get(word.decode("utf-8", errors="replace"))
            if row is not None and row not in found:
                found[row] = _vector(path, number, values)
    return found


def _is_header(line: bytes) -> bool:
    """Whether this is word2vec's first line: the number of words and the width."""
    parts = line.split()
    return len(parts) == 2 and all(part.isdigit() for part in parts)


def _check_header(path: str | Path, line: bytes, width: int) -> None:
    given = int(line.split()[1])
    if given != width:
        raise InputError(
            f"{path}, line 1: vectors of width {given}, but the model's embeddings are {width} wide; choose other "
            "vectors or another width"
        )


def _vector(path: str | Path, number: int, values: list[bytes]) -> Tensor:
    try:
        vector = np.array(values, dtype=np.float64)
    except ValueError:
        raise InputError(f"{path}, line {number}: not a word and {len(values)} numbers") from None
    if not np.isfinite(vector).all():
        raise InputError(f"{path}, line {number}: a number that is not finite")
    return torch.from_numpy(vector).float()
