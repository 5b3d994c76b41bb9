"""Models and tokenizers, for every command: from safetensors or GGUF, checked whole, or refused in one sentence.

``flag``: what the model was given with, for messages, which begin with it and the name: ``MODEL runs/mine: ...``.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import Tensor, dtype, nn
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from antiphase.errors import InputError, is_lack_of_memory, shown
from antiphase.reading.files import one_line, read_json
from antiphase.reading.gguf import is_gguf, read_header, split_digits
from antiphase.reading.limits import check_depth, check_returned, check_special

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
OBJECTS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json",
)  # fmt: skip
"""Files of a model's folder that hold a JSON object; libraries fail on others with errors of any kind."""
REBUILT = ("rotary_emb.inv_freq",)
"""Ends of tensor names that old checkpoints hold and every model computes for itself."""
ADAPTER = "adapter_config.json"
"""File of PEFT; transformers follows it to the adapter's base model, wherever that is."""
PACKED = 32
"""Weights that one stored number may hold: bits of a quantization to one, and a little."""
ORIGIN = "dequantized_from"
"""Field of a configuration: the quantization that the weights went through, such as ``Q4_1``."""
PICKLED = ("bin", "pt", "pth", "ckpt")
UNREADABLE = (OSError, ValueError, KeyError, ImportError, SafetensorError, StrictDataclassError)
"""What transformers raises for files that it cannot use."""
IMPOSSIBLE = (*UNREADABLE, TypeError, AttributeError, AssertionError, ArithmeticError, LookupError, NotImplementedError,
              RecursionError)  # fmt: skip
"""What a configuration whose values do not fit together makes its own class raise."""
FAULTS = {
    "missing": "it has no weights for {}",
    "surplus": "its configuration has no place for {}",
    "misshapen": "{}",
    "broken": "NaN or infinite weights in {}",
}
"""What is wrong with the tensors of a checkpoint."""


@dataclass(frozen=True)
class WeightFiles:
    """The safetensors files of a folder: shape, type and file of each tensor of the model, from their headers alone."""

    files: tuple[Path, ...]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    """As safetensors calls them: ``F32``, ``BF16``, ..."""
    places: Mapping[str, Path]

    def read(self, name: str) -> Tensor:
        """One tensor, mapped from its file."""
        with safe_open(self.places[name], "pt") as file:
            return file.get_tensor(name)


# ------------------------------------------------------------------------------------------ folders and their files


def local_folder(name: str, flag: str) -> Path | None:
    """The folder of this name, looked through; None: a name that only the Hub may know.

    Raises:
        InputError: a file, a folder without a configuration, or with files that hold something else than they should.
    """
    folder = Path(name)
    if not folder.is_dir():
        if folder.exists() or not name:
            raise InputError(f"{flag} {name}: this is not a folder; give the folder of a model")
        if _is_local(name, folder):
            raise InputError(f"{flag} {name}: there is no such folder; check the path")
        return None
    if (folder / ADAPTER).exists():
        raise InputError(
            f"{flag} {name}: {ADAPTER} names another model, whose weights would be read from there; merge the adapter "
            "into its model, and give the folder of the result"
        )
    if not (folder / "config.json").is_file():
        raise InputError(f"{flag} {name}: this folder holds no model (config.json is missing); give the folder of one")
    _check_files(folder, flag)
    return folder


def _is_local(name: str, path: Path) -> bool:
    """Whether a name that no file or folder has is a mistyped path rather than one of the Hub."""
    return path.is_absolute() or name[:1] == "." or name.count("/") > 1 or ("/" in name and path.parent.is_dir())


def _check_files(folder: Path, flag: str) -> None:
    for path in (*folder.iterdir(), *(folder / "additional_chat_templates").glob("*")):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError(f"{flag} {path}: this is a pipe or a device, which may never end; remove it")
    for file in OBJECTS:
        if (folder / file).exists() or (folder / file).is_symlink():
            read_json(folder / file, flag, "save the model once more")


def weight_files(folder: Path, name: str, flag: str) -> WeightFiles:
    """What the folder of a model holds, without its numbers.

    Raises:
        InputError: no safetensors (pickled weights are never read), a file that is missing or damaged, or a tensor that
            the index names and no file holds.
    """
    place = f"{flag} {name}"
    paths = sorted(folder.glob("*.safetensors"))
    listed: dict[str, str] = {}
    if (folder / WHOLE) in paths:  # first, as transformers does: an index beside it is of other files
        paths = [folder / WHOLE]
    elif (folder / INDEX).is_file():
        listed = _listed_in(folder / INDEX, flag)
        if missing := sorted(set(listed.values()) - {path.name for path in paths}):
            raise InputError(f"{place} lacks {missing[0]}, which its {INDEX} names")
        paths = [path for path in paths if path.name in listed.values()]
    if not paths:
        pickled = [path.name for end in PICKLED for path in sorted(folder.glob(f"*.{end}"))]
        found = f"{pickled[0]} is a pickle file, which is never opened: save it as safetensors" if pickled else ""
        raise InputError(f"{place} holds no safetensors; {found or 'give a folder that holds the weights'}")
    shapes, dtypes, places = {}, {}, {}
    for path in paths:
        try:
            with safe_open(path, "pt") as file:
                for tensor in file.keys():  # noqa: SIM118 – safe_open is no mapping
                    if tensor.endswith(REBUILT):
                        continue
                    header = file.get_slice(tensor)
                    places[tensor], dtypes[tensor] = path, header.get_dtype()
                    shapes[tensor] = tuple(header.get_shape())
        except (SafetensorError, OSError) as error:
            raise InputError(f"{place}: {path.name} is damaged ({one_line(error)}); copy or save it again") from None
    if lacking := sorted(tensor for tensor in listed if tensor not in shapes and not tensor.endswith(REBUILT)):
        raise InputError(f"{place} lacks the tensor {lacking[0]}, which its {INDEX} names")
    return WeightFiles(tuple(paths), shapes, dtypes, places)


def _listed_in(path: Path, flag: str) -> dict[str, str]:
    """{tensor: file} of an index."""
    remedy = "save the model once more"
    found = read_json(path, flag, remedy).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise InputError(f"{flag} {path} is damaged: its weight_map names no files; {remedy}")
    return found


# ------------------------------------------------------------------------------------------ configuration and weights


def read_config(name: str, *, flag: str) -> PreTrainedConfig:
    """The configuration of a model in a folder, a GGUF file or on the Hub; code that lies beside it is never run.

    Raises:
        InputError: there is no such model, or its configuration cannot be used.
    """
    if is_gguf(name):
        return _gguf_config(name, flag)
    if local_folder(name, flag) is None:
        with asking_hub(name, flag):
            tree, _ = PreTrainedConfig.get_config_dict(name)
            check_depth(tree, f"{flag} {name}")
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    else:
        check_depth(read_json(Path(name) / "config.json", flag, "save the model once more"), f"{flag} {name}")
        with usable_config(name, flag):
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    with usable_config(name, flag):
        if not isinstance(config.architectures, list | None):
            raise TypeError(f"architectures must be a list of names, got {config.architectures!r}")
        if "/" in str(config._attn_implementation):  # transformers would fetch and run it
            raise ValueError(f"the attention {shown(config._attn_implementation)} is code of the Hub, never run here")
        check_returned(config)
        if not isinstance(config.dtype, dtype | None):
            raise TypeError(f"dtype must be the name of a type, got {config.dtype!r}")
    return config


def _gguf_config(name: str, flag: str) -> PreTrainedConfig:
    header = read_header(name, flag)
    with loading(f"{flag} {name}: its header cannot be used"):
        config = AutoConfig.from_pretrained(**_gguf_place(name))
    if header.quantization is not None:
        setattr(config, ORIGIN, header.quantization)
    return config


def _gguf_place(name: str) -> dict[str, str]:
    """A GGUF file, as transformers is told of it."""
    return {"pretrained_model_name_or_path": str(Path(name).parent), "gguf_file": Path(name).name}


def origin_of(name: str, *, flag: str = "MODEL") -> str | None:
    """The quantization that a model's weights went through, such as ``Q4_1``; None: none that is known.

    Raises:
        InputError: as ``read_config``.
    """
    found = (
        read_header(name, flag).quantization if is_gguf(name) else getattr(read_config(name, flag=flag), ORIGIN, None)
    )
    return found if isinstance(found, str) else None


@contextmanager
def usable_config(name: str, flag: str) -> Iterator[None]:
    """What a configuration makes its class raise, as an input error that names the model."""
    try:
        yield
    except IMPOSSIBLE as error:
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        raise InputError(f"{flag} {name}: its config.json cannot be used ({first_line(reason)})") from None


@contextmanager
def asking_hub(name: str, flag: str) -> Iterator[None]:
    """What the Hub's client raises, as an input error that names the model."""
    try:
        yield
    except UNREADABLE as error:
        raise InputError(
            f"{flag} {name}: there is no such folder, and no such model could be read from the Hub "
            f"({first_line(error)}); check the name"
        ) from error


@contextmanager
def loading(failure: str) -> Iterator[None]:
    """What a library says of a checkpoint that it cannot read, as an input error that begins with ``failure``."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # the Rust side of tokenizers raises Exception itself
        if not (isinstance(error, IMPOSSIBLE) or type(error) is Exception or is_lack_of_memory(error)):
            raise
        raise InputError(f"{failure} ({first_line(error)})") from error


def first_line(error: object) -> str:
    """What a library says first."""
    found = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return found.rstrip(".: ")


def read_model(
    name: str,
    choose: Callable[[PreTrainedConfig], Any],
    *,
    flag: str = "MODEL",
    kind: str = "causal language model",
    whole: str = "whole model",
    dtype: str | None = None,
    device_map: str | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model on the CPU, with every weight taken from its checkpoint, and its tokenizer.

    Args:
        choose: the class of transformers that makes the model of a configuration.
        dtype: of the weights in memory, such as ``bfloat16``; None: as they are stored, float32 for a GGUF file.
        device_map: how accelerate spreads the model over devices, such as ``auto``; None: it stays on the CPU.
        kind: what such a model is called.
        whole: what one without missing tensors is called.

    Raises:
        InputError: there is none under this name, its files cannot be read, tensors or tokenizer do not fit its
            configuration, or weights are not finite. It names the first of them.
    """
    if device_map is not None and importlib.util.find_spec("accelerate") is None:
        raise InputError("--device-map needs the package accelerate; run pip install accelerate, or give --device")
    config = read_config(name, flag=flag)
    if Path(name).is_dir():  # transformers reads a model of the Hub while it fetches it
        stored = weight_files(Path(name), name, flag)
        _check_size(choose(config), config, stored, f"{flag} {name}")
    options: dict[str, Any] = {"dtype": dtype or "auto", "device_map": device_map}
    if is_gguf(name):  # dequantized in float32: in another format transformers warns of what it does not do here
        options |= {"dtype": "float32", "config": config}
    with loading(f"{flag} {name}: no {kind} could be loaded"):
        model = _read_weights(choose(config), name, f"{flag} {name}", whole, options)
    if is_gguf(name) and dtype is not None:
        model = model.to(getattr(torch, dtype))
    check_special(model, f"{flag} {name}")
    tokenizer = load_tokenizer(name, flag=flag)
    check_tokenizer(tokenizer, model, f"{flag} {name}")
    return model, tokenizer


def _check_size(auto: Any, config: PreTrainedConfig, stored: WeightFiles, place: str) -> None:
    """Compare the sizes in a configuration with those of its weights, before memory is taken for what is missing.

    Raises:
        InputError: the configuration asks for far more than there is.
    """
    with loading(f"{place}: its config.json cannot be used"), torch.device("meta"):
        shell = auto.from_config(config, trust_remote_code=False)
    asked = sum(weight.numel() for weight in shell.parameters())
    found = sum(math.prod(shape) for shape in stored.shapes.values())
    if asked > PACKED * (found + 1):
        raise InputError(
            f"{place} is no whole model: its config.json asks for {asked:,} weights, and its files hold {found:,}"
        )


def _read_weights(auto: Any, name: str, place: str, whole: str, options: Mapping[str, Any]) -> PreTrainedModel:
    """The model with its own weights: transformers alone would draw what is missing, and report it.

    One pass over the weights looks for those that are not finite, at several GB/s.
    """
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(_is_no_report)
    try:
        model, notes = auto.from_pretrained(
            **(_gguf_place(name) if is_gguf(name) else {"pretrained_model_name_or_path": name}),
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **options,
        )
    finally:
        logger.removeFilter(_is_no_report)
    if hasattr(model, "hf_quantizer"):  # of a GGUF file, whose weights are ordinary ones now
        model.hf_quantizer.remove_quantization_config(model)
    check_tensors(
        place,
        whole=whole,
        missing=notes["missing_keys"],
        surplus=notes["unexpected_keys"] if _is_own(model) else (),  # others may carry heads that this class has not
        misshapen={key: (found, expected) for key, found, expected in notes["mismatched_keys"]},
        broken=(key for key, weight in model.named_parameters() if not is_finite(weight)),
    )
    return model


def _is_no_report(line: logging.LogRecord) -> bool:
    """Not the list of what a checkpoint lacks: here that is an error, told in one sentence."""
    return "LOAD REPORT" not in line.getMessage()


def _is_own(model: PreTrainedModel) -> bool:
    """Whether the checkpoint was written by exactly this class of this package."""
    return type(model).__module__.startswith("antiphase.") and type(model).__name__ in (
        model.config.architectures or []
    )


# ------------------------------------------------------------------------------------------ tensors


def check_tensors(
    place: str,
    *,
    whole: str = "whole model",
    missing: Iterable[str] = (),
    surplus: Iterable[str] = (),
    misshapen: Mapping[str, tuple[Iterable[int], Iterable[int]]] | None = None,
    broken: Iterable[str] = (),
) -> None:
    """
    Args:
        place: what holds the tensors.
        misshapen: shape found and shape expected, of tensors where they differ.
        broken: tensors with numbers that are not finite.

    Raises:
        InputError: any of these; it names the first and counts the others.
    """
    shapes = misshapen or {}
    for fault, names in (("missing", missing), ("surplus", surplus), ("misshapen", shapes), ("broken", broken)):
        if not (listed := sorted(names)):
            continue
        told = listed[0]
        if fault == "misshapen":
            found, expected = map(tuple, shapes[told])
            told = f"{told} has the shape {found}, expected {expected}"
        if len(listed) > 1:
            told += f" and {len(listed) - 1} more"
        raise InputError(f"{place} is no {whole}: {FAULTS[fault].format(told)}")


def check_shapes(
    found: Mapping[str, Iterable[int]],
    expected: Mapping[str, Iterable[int]],
    place: str,
    *,
    whole: str = "whole model",
) -> None:
    """Compare what a checkpoint or state dict holds with what its configuration asks for.

    Raises:
        InputError: a tensor is missing, surplus, or of another shape.
    """
    shared = {name: (tuple(found[name]), tuple(expected[name])) for name in set(found) & set(expected)}
    check_tensors(
        place,
        whole=whole,
        missing=set(expected) - set(found),
        surplus=set(found) - set(expected),
        misshapen={name: shapes for name, shapes in shared.items() if shapes[0] != shapes[1]},
    )


def is_finite(weight: Tensor) -> bool:
    """Whether no entry is NaN or infinite, without a copy in memory; whole numbers are finite."""
    if not weight.is_floating_point() or not weight.numel():
        return True
    wide = weight.detach() if weight.element_size() > 1 else weight.detach().float()  # torch has no order of 8 bits
    return all(bool(end.isfinite()) for end in wide.aminmax())


# ------------------------------------------------------------------------------------------ tokenizers


def load_tokenizer(name_or_path: str, *, flag: str = "data.tokenizer") -> PreTrainedTokenizerBase:
    """The tokenizer of a local folder or of a repository of the Hugging Face Hub; code in it is never run.

    Raises:
        InputError: there is none, it is broken or needs its own code, or the Hub is out of reach.
    """
    if is_gguf(name_or_path):
        return _gguf_tokenizer(name_or_path, flag)
    path = Path(os.path.expanduser(name_or_path))
    local = bool(name_or_path) and path.exists()  # Path("") is the working directory
    if local and not path.is_dir():
        raise InputError(f"{flag} {name_or_path}: this is a file; give the folder that holds tokenizer.json")
    if not local and (not name_or_path or _is_local(name_or_path, path)):
        raise InputError(f"{flag} {name_or_path}: there is no such folder; check the path")
    if local:
        _check_files(path, flag)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path) if local else name_or_path, trust_remote_code=False)
        if not isinstance(tokenizer.model_max_length, int | float):
            raise TypeError(f"model_max_length must be a number, got {tokenizer.model_max_length!r}")
    except Exception as error:
        # The Rust side of tokenizers raises Exception itself for a tokenizer.json that it does not understand
        if not (isinstance(error, IMPOSSIBLE) or type(error) is Exception):
            raise
        where = "this folder" if local else "the Hugging Face Hub"
        raise InputError(
            f"{flag} {name_or_path}: no tokenizer could be loaded from {where} ({first_line(error)}); give "
            "a folder with tokenizer.json or a Hub name"
        ) from error
    return cast(PreTrainedTokenizerBase, tokenizer)


def _gguf_tokenizer(name: str, flag: str) -> PreTrainedTokenizerBase:
    header = read_header(name, flag)
    # AutoTokenizer reads the configuration once more, which takes twenty times as long, to come to this very class
    is_bpe = (header.metadata["general.architecture"], header.metadata.get("tokenizer.ggml.model")) == ("llama", "gpt2")
    kind = PreTrainedTokenizerFast if is_bpe else AutoTokenizer
    with loading(f"{flag} {name}: no tokenizer could be read from it"):
        tokenizer = kind.from_pretrained(**_gguf_place(name))
    split_digits(tokenizer, header)
    return cast(PreTrainedTokenizerBase, tokenizer)


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, place: str) -> None:
    """That the model has an embedding for every word that a text can become.

    Special tokens beyond it are allowed: some published tokenizers bring those of a larger relative along.

    Raises:
        InputError: the tokenizer has words beyond the embedding.
    """
    if model.config.is_encoder_decoder:  # each side has a vocabulary of its own, against which its text is checked
        return
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding):  # characters as one-hot vectors, pictures, sounds
        return
    special = tokenizer.added_tokens_decoder
    beyond = [
        word for word, row in tokenizer.get_vocab().items() if row >= embedding.num_embeddings and row not in special
    ]
    if beyond:
        raise InputError(
            f"{place}: its tokenizer is another model's, with {len(beyond)} words beyond the model's "
            f"{embedding.num_embeddings}, such as {min(beyond)!r}; put the model's own tokenizer there"
        )
