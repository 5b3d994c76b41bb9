"""GGUF files (llama.cpp): what a file says of itself, checked before transformers reads its tensors.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. transformers leaves out tensors that it has no
place for and falls over files that are cut short, so both are told from the header alone.
"""

from __future__ import annotations

import importlib.util
import math
import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from tokenizers import pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations.gguf import gguf_tokenizer_mapping
from transformers.modeling_gguf_pytorch_utils import (
    GGUF_SUPPORTED_ARCHITECTURES,
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
)

from antiphase.base.errors import InputError, brief, named
from antiphase.base.files import reading
from antiphase.base.limits import LARGEST_DEPTH

ENDING, MAGIC, VERSIONS = ".gguf", b"GGUF", (2, 3)
NEEDED = ("gguf", "accelerate")
"""Packages of the extra ``gguf``."""
ARCHITECTURES = sorted(set(GGUF_SUPPORTED_ARCHITECTURES) - {"general", "tokenizer"})
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Codes of values in the metadata, as ``struct`` writes them."""
STRING, ARRAY = 8, 9
MOST, LARGEST = 1 << 20, 1 << 30
"""Keys and tensors of a file, and sizes among its keys: far more than any model has."""
MOST_WORDS = 1 << 24
"""Texts of an array; the largest vocabularies have a quarter of a million words and half a million merges."""
LONGEST_TEXT = 1 << 24
"""Bytes of a single text, such as a chat template."""
MOST_DIMENSIONS = 4
"""Of a tensor, by the format."""
SIZES = ("_count", "_length", "_count_kv", "vocab_size")
"""Ends of keys that hold whole numbers."""
SPECIAL = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "unknown"))
"""Keys of tokens that transformers looks up among the words."""
HEAD = {"output.weight", "output.bias"}
OF_EXPERTS = re.compile(r"_exps?\.")
"""Tensors of all experts of a layer, whose parts transformers places by a rule of its own."""
SCALES = ("rope.scaling.factor", "rope.scaling.attn_factor", "rope.scale_linear")
"""Ends of keys by which positions are scaled unless their value is 1."""
SCALING_READ = ("gpt-oss",)
"""Architectures whose scaling transformers reads; that of all others it leaves out without a word."""
WHOLE_NUMBERS = ("F64", "F32", "F16", "BF16")
"""Types that are no quantization."""
DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Byte-pair vocabularies whose texts llama.cpp cuts at every digit, then as GPT-2 does; transformers does only that."""
AS_GPT2 = ("gpt-2", "phi-2", "mpt", "olmo", "jais")
"""Those whose texts it cuts as GPT-2 does."""
SPLITS = {*DIGITS, *AS_GPT2, *getattr(gguf_tokenizer_mapping, "GGUF_PRE_TOKENIZER_SPLITS", ())}
"""All whose texts are cut in the right places; the last are known to transformers, from 5.23 on."""


class Array(NamedTuple):
    """What is read of an array."""

    length: int


@dataclass(frozen=True)
class GgufHeader:
    """What a file says of itself."""

    metadata: Mapping[str, Any]
    """Single values by key, and an ``Array`` for each array."""
    quantization: str | None
    """Type of most of the weights, such as ``Q4_1``; None if they are not quantized."""
    tensors: Sequence[str]
    """Their names."""
    count: int
    """Of weights in all tensors."""


def is_gguf(name: str) -> bool:
    """Whether a model's name is that of a GGUF file."""
    return name.lower().endswith(ENDING) and not Path(name).is_dir()


def gguf_place(name: str) -> dict[str, str]:
    """A GGUF file, as transformers is told of it."""
    return {"pretrained_model_name_or_path": str(Path(name).parent), "gguf_file": Path(name).name}


def read_header(name: str, field: str) -> GgufHeader:
    """The header of a file, whose model can be read.

    Raises:
        InputError: it is no GGUF file, is cut short, needs a package that is missing, or holds an architecture, tensors
            or a quantization that cannot be read.
    """
    place = named(field, name)
    if missing := [package for package in NEEDED if importlib.util.find_spec(package) is None]:
        raise InputError(f"{place}: GGUF files need the package {missing[0]}", "run pip install 'antiphase[gguf]'")
    with reading(name, field), open(name, "rb") as file:
        try:
            metadata, tensors, end = _parsed(file, place)
        except (struct.error, _CutError):
            raise InputError(
                f"{place} is damaged or cut short within its header", "download or copy it again"
            ) from None
        size = Path(name).stat().st_size
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise InputError(
            f"{place} holds a model of the architecture {architecture!r}, which cannot be read from GGUF files",
            f"{', '.join(ARCHITECTURES)} can",
        )
    _check_sizes(metadata, place)
    _check_heads(str(architecture), metadata, place)
    _check_specials(metadata, place)
    if architecture not in SCALING_READ:
        _check_positions(str(architecture), metadata, [name for name, *_ in tensors], place)
    sizes: Counter[str] = Counter()
    for tensor, shape, code, offset in tensors:
        kind, stored = _stored(code, math.prod(shape), f"{place}: {tensor}")
        if end + offset + stored > size:
            raise InputError(
                f"{place} is cut short: {tensor} ends at byte {end + offset + stored:,}, the file has {size:,}",
                "download or copy it again",
            )
        sizes[kind] += math.prod(shape)
    most = sizes.most_common(1)[0][0] if sizes else None
    names = [name for name, *_ in tensors]
    return GgufHeader(metadata, None if most in WHOLE_NUMBERS else most, names, sizes.total())


def left_out(model: PreTrainedModel, header: GgufHeader) -> list[str]:
    """The file's tensors for which transformers has no place in the model, and which it leaves out without a word.

    The head is none of them where a model without one is read, of which only the layers are measured.
    """
    architecture = header.metadata["general.architecture"]
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=model.config.to_dict())
    placed = get_gguf_hf_weights_map(model, processor)
    own = placed.keys() | (HEAD if model.get_output_embeddings() is None else set())
    return [name for name in header.tensors if name not in own and not OF_EXPERTS.search(name)]


def _check_sizes(metadata: Mapping[str, Any], place: str) -> None:
    """Look at the numbers of layers and heads, and at widths, with which transformers would calculate.

    Raises:
        InputError: one of them is none.
    """
    for key, value in metadata.items():
        most = LARGEST_DEPTH if key.endswith(".block_count") else LARGEST
        is_one = isinstance(value, int) and 0 <= value <= most
        if key.endswith(SIZES) and not isinstance(value, Array) and not is_one:
            raise InputError(f"{place}: {key} must be a whole number from 0 to {most}, got {brief(value)}")


def _check_heads(architecture: str, metadata: Mapping[str, Any], place: str) -> None:
    """That the width divides into heads, where the file does not give theirs; Mamba's files name no heads, or zero.

    Raises:
        InputError: it does not.
    """
    keys = (f"{architecture}.embedding_length", f"{architecture}.attention.head_count")
    width, heads = (metadata.get(key) for key in keys)
    if f"{architecture}.attention.key_length" in metadata or not isinstance(width, int) or not isinstance(heads, int):
        return
    if heads and width % heads:
        raise InputError(
            f"{place}: {keys[0]}, {width}, is no multiple of {keys[1]}, {heads}", "download or copy the file again"
        )


def _check_specials(metadata: Mapping[str, Any], place: str) -> None:
    """That the special tokens which transformers looks up are words.

    Raises:
        InputError: one of them is none.
    """
    words = metadata.get("tokenizer.ggml.tokens")
    for key in SPECIAL:
        number = metadata.get(key)
        if number is not None and isinstance(words, Array) and not (
            isinstance(number, int) and 0 <= number < words.length
        ):  # fmt: skip
            raise InputError(
                f"{place}: {key} must be the number of one of its {words.length:,} words, got {brief(number)}",
                "download or copy the file again",
            )


def _check_positions(architecture: str, metadata: Mapping[str, Any], tensors: Sequence[str], place: str) -> None:
    """That positions are not scaled.

    Raises:
        InputError: they are, by a factor or by factors of their own for each frequency.
    """
    scales = {key: metadata.get(f"{architecture}.{key}") for key in SCALES}
    found = [key for key, value in scales.items() if value not in (None, 1)]
    kind = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if kind != "none" and scales["rope.scaling.factor"] is None:
        found.append("rope.scaling.type")
    found += [name for name in tensors if name.startswith(("rope_freqs", "rope_factors"))]
    if found:
        raise InputError(
            f"{place} scales its positions ({found[0]}), which transformers does not read from GGUF files",
            "give the model's folder of safetensors",
        )


def check_merges(header: GgufHeader, place: str) -> None:
    """That a byte-pair vocabulary comes with its merges; without them transformers would cut texts into single bytes.

    Raises:
        InputError: it has none.
    """
    merges = header.metadata.get("tokenizer.ggml.merges")
    if header.metadata.get("tokenizer.ggml.model") == "gpt2" and not (isinstance(merges, Array) and merges.length):
        raise InputError(f"{place}: its byte-pair tokenizer has no merges", "convert the model to GGUF once more")


def check_splits(header: GgufHeader, place: str) -> None:
    """That texts are cut where the file's byte-pair vocabulary was made to be cut.

    Raises:
        InputError: transformers would cut them elsewhere, so that the model would read other tokens.
    """
    rule = header.metadata.get("tokenizer.ggml.pre")
    if header.metadata.get("tokenizer.ggml.model") == "gpt2" and rule is not None and rule not in SPLITS:
        raise InputError(
            f"{place}: its tokenizer cuts texts by the rule {brief(rule)}, which this version of transformers does "
            "not read from GGUF files",
            "give the model's folder of safetensors",
        )


def check_space(tokenizer: PreTrainedTokenizerBase, header: GgufHeader, place: str) -> None:
    """That a text begins with a space where, and only where, the file says so.

    Raises:
        InputError: transformers has ignored what the file says, so that the model would read other tokens.
    """
    wanted = header.metadata.get("tokenizer.ggml.add_space_prefix")
    if header.metadata.get("tokenizer.ggml.model") != "llama" or wanted is None:
        return
    if tokenizer.tokenize("a")[0].startswith("\u2581") != bool(wanted):
        raise InputError(
            f"{place}: its tokenizer puts {'a' if wanted else 'no'} space before a text (add_space_prefix), which "
            "this version of transformers does not read from GGUF files",
            "give the model's folder of safetensors",
        )


def split_digits(tokenizer: PreTrainedTokenizerBase, header: GgufHeader) -> None:
    """Have the tokenizer cut texts at every digit, where the file's vocabulary was made so."""
    if header.metadata.get("tokenizer.ggml.pre") in DIGITS:
        backend = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])


class _CutError(Exception):
    """The header ends too early, or holds what no header does."""


def _parsed(file: IO[bytes], place: str) -> tuple[dict[str, Any], list[tuple[str, tuple[int, ...], int, int]], int]:
    """Metadata; name, shape, type and offset of each tensor; and the byte where their data begins."""
    if file.read(4) != MAGIC:
        raise InputError(f"{place} is no GGUF file, whose first bytes are {MAGIC.decode()}", "give another file")
    version = _number(file, "I")
    if version not in VERSIONS:
        raise InputError(
            f"{place} has version {version} of GGUF", f"versions {VERSIONS[0]} and {VERSIONS[1]} can be read"
        )
    count, keys = _number(file, "Q"), _number(file, "Q")
    if max(count, keys) > MOST:
        raise _CutError
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        key = _string(file)
        metadata[key] = _value(file, _number(file, "I"))
    tensors = []
    for _ in range(count):
        name = _string(file)
        if (dimensions := _number(file, "I")) > MOST_DIMENSIONS:
            raise _CutError
        shape = tuple(_number(file, "Q") for _ in range(dimensions))
        tensors.append((name, shape, _number(file, "I"), _number(file, "Q")))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 8 <= alignment <= MOST:
        raise _CutError
    return metadata, tensors, -(-file.tell() // alignment) * alignment


def _number(file: IO[bytes], code: str) -> Any:
    return struct.unpack(f"<{code}", file.read(struct.calcsize(f"<{code}")))[0]


def _string(file: IO[bytes]) -> str:
    length = _number(file, "Q")
    text = file.read(length) if length <= LONGEST_TEXT else b""
    if len(text) < length:
        raise _CutError
    return text.decode("utf-8", errors="replace")


def _value(file: IO[bytes], code: int) -> Any:
    """A single value, or the length of an array, whose values are passed over."""
    if code in NUMBERS:
        return _number(file, NUMBERS[code])
    if code == STRING:
        return _string(file)
    if code != ARRAY:
        raise _CutError
    inner, count = _number(file, "I"), _number(file, "Q")
    if inner in NUMBERS:
        _skip(file, count * struct.calcsize(f"<{NUMBERS[inner]}"))
    elif inner == STRING and count <= MOST_WORDS:
        for _ in range(count):
            _skip(file, _number(file, "Q"))
    else:
        raise _CutError
    return Array(count)


def _skip(file: IO[bytes], count: int) -> None:
    if count >= 1 << 40:  # no header is so long, and no file system may be able to seek there
        raise _CutError
    file.seek(count, 1)


def _stored(code: int, count: int, place: str) -> tuple[str, int]:
    """Name of a tensor's type, and its bytes.

    Raises:
        InputError: the type cannot be read.
    """
    import gguf
    import numpy

    try:
        kind = gguf.GGMLQuantizationType(code)
        block, width = gguf.GGML_QUANT_SIZES[kind]
        gguf.dequantize(numpy.zeros((1, width), numpy.uint8), kind)
    except (ValueError, NotImplementedError):
        raise InputError(
            f"{place} is stored in type {code}, a quantization that cannot be read",
            "take a file of another, such as Q8_0 or Q4_K_M",
        ) from None
    return kind.name, count // block * width
