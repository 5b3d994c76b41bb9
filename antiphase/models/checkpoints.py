"""Checkpoint folders in safetensors, read tensor by tensor and written shard by shard, beside and then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    StrictDataclassError,
)
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from antiphase.errors import InputError
from antiphase.models.conversion import (
    HEAD,
    Conversion,
    Format,
    check_names,
    check_shapes,
    check_tied,
    plan_conversion,
    tensor_shapes,
)
from antiphase.models.model_card import write_model_card

TRAVELLING = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template*",
    "generation_config.json", "*.model",
)  # fmt: skip
"""Files of tokenizer and generation that are copied as they are."""
INDEX = "model.safetensors.index.json"
DTYPES = ("F64", "F32", "BF16", "F16")
"""Types of weights as safetensors calls them; any other is a quantized model's."""
REBUILT = ("rotary_emb.inv_freq",)
"""Ends of tensor names that old checkpoints hold and every model computes for itself."""


class Checkpoint:
    """A model's folder, whose tensors are mapped into memory and read one at a time."""

    def __init__(self, name: str) -> None:
        """
        Args:
            name: local folder or Hub name.

        Raises:
            InputError: no such folder, no configuration, no safetensors (pickled weights are never read), or a file
                that is damaged.
        """
        self.name, self.folder = name, _folder(name)
        self.config = _config(name, self.folder)
        self._shards: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        paths = sorted(self.folder.glob("*.safetensors"))
        listed = self.folder / INDEX
        places: dict[str, str] = {}
        whole = self.folder / "model.safetensors"
        if whole.is_file():  # first, as transformers does: an index beside it is of other files
            paths = [whole]
        elif listed.is_file():
            try:
                places = dict(json.loads(listed.read_text(encoding="utf-8"))["weight_map"])
                wanted = set(places.values())
            except (ValueError, KeyError, TypeError, AttributeError):
                raise InputError(f"SOURCE {name}: {INDEX} is damaged") from None
            if missing := sorted(wanted - {path.name for path in paths}):
                raise InputError(f"SOURCE {name} lacks {missing[0]}, which its {INDEX} names")
            paths = [path for path in paths if path.name in wanted]
        if not paths:
            pickled = [path.name for end in ("bin", "pt", "pth") for path in self.folder.glob(f"*.{end}")]
            found = f"; {pickled[0]} is a pickle file, which is never opened: save it as safetensors" if pickled else ""
            raise InputError(f"SOURCE {name} holds no safetensors{found}")
        self.largest_shard = max(path.stat().st_size for path in paths)
        for path in paths:
            try:
                with safe_open(path, "pt") as file:
                    for tensor in file.keys():  # noqa: SIM118 – safe_open is no mapping
                        if not tensor.endswith(REBUILT):
                            found = file.get_slice(tensor)
                            if found.get_dtype() not in DTYPES:
                                raise InputError(
                                    f"SOURCE {name}: the tensor {tensor} is of type {found.get_dtype()}, expected one "
                                    f"of {', '.join(DTYPES)}"
                                )
                            self._shards[tensor] = path
                            self.shapes[tensor] = tuple(found.get_shape())
            except (SafetensorError, OSError) as error:
                raise InputError(f"SOURCE {name}: {path.name} is damaged ({error})") from None

        if lacking := sorted(name for name in places if name not in self.shapes and not name.endswith(REBUILT)):
            raise InputError(f"SOURCE {name} lacks the tensor {lacking[0]}, which its {INDEX} names")

    def digest(self) -> str:
        """SHA-256 over the files that hold the weights."""
        found = hashlib.sha256()
        for path in sorted(set(self._shards.values())):
            with open(path, "rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
        return found.hexdigest()

    def read(self, name: str) -> Tensor:
        """One tensor, mapped from its file."""
        with safe_open(self._shards[name], "pt") as file:
            return file.get_tensor(name)

    @property
    def model_tensors(self) -> list[str]:
        """Names of the model's own tensors; a tied head, stored a second time, is none."""
        return [name for name in self.shapes if not (name == HEAD and self.config.tie_word_embeddings)]

    def check(self) -> None:
        """Compare the tensors with the configuration, and look through them once, at several GB/s.

        Raises:
            InputError: a tensor that the configuration's model has not, lacks, or has in another shape; weights that
                are NaN or infinite.
        """
        try:
            expected = tensor_shapes(self.config)
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError, ZeroDivisionError) as error:
            raise _unusable(self.name, error) from None
        found = dict(self.shapes)
        if self.config.tie_word_embeddings and HEAD in found:  # some tools store the tied head a second time
            del found[HEAD]
            check_tied(self.read, f"SOURCE {self.name}")
        check_names(found, expected, f"SOURCE {self.name}")
        check_shapes(found, expected)
        for name in self.model_tensors:
            if not is_finite(self.read(name)):
                raise InputError(f"SOURCE {self.name}: NaN or infinite weights in {name}")


def is_finite(weight: Tensor) -> bool:
    """Whether no entry is NaN or infinite, without a copy in memory; whole numbers are finite."""
    if not weight.is_floating_point() or not weight.numel():
        return True
    wide = weight.detach() if weight.element_size() > 1 else weight.detach().float()  # torch has no order of 8 bits
    return all(bool(end.isfinite()) for end in wide.aminmax())


def convert(
    source: str,
    target: str | Path,
    *,
    to: Format = "antiphase",
    attention_type: str | None = None,
    control: bool = False,
    say: Callable[[str], None] = lambda message: None,
) -> PreTrainedConfig:
    """Convert a checkpoint folder into a new one; tokenizer and generation settings travel along.

    Peak memory is about two shards of the source, whatever its size.

    Args:
        source: local folder or Hub name of a Llama, Mistral, DiffLlama or antiphase model.
        target: folder to make.
        to, attention_type, control: as for ``plan_conversion``.
        say: called with a sentence for each shard written.

    Returns:
        The configuration of what was written.

    Raises:
        InputError: a source that cannot be converted, or a target that exists; nothing is left behind.
    """
    given, target = target, Path(target).resolve()  # a link stays, what it points to is filled
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"TARGET {given} exists and is not empty; choose another folder")
    checkpoint = Checkpoint(source)
    conversion = plan_conversion(checkpoint.config, to=to, attention_type=attention_type, control=control)
    checkpoint.check()
    with _beside(target) as folder:
        _write_shards(conversion, checkpoint, folder, say)
        config = conversion.config
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        config.architectures = [type(model).__name__]
        config.save_pretrained(folder)
        for pattern in TRAVELLING:
            for path in filter(Path.is_file, checkpoint.folder.glob(pattern)):
                shutil.copy2(path, folder / path.name)
        if to == "antiphase":
            write_model_card(model, folder)
    return conversion.config


def _write_shards(conversion: Conversion, checkpoint: Checkpoint, folder: Path, say: Callable[[str], None]) -> None:
    """The tensors in files of at most the source's largest, and an index where there are several."""
    expected = tensor_shapes(conversion.config)
    shards: list[list[str]] = []
    waiting: dict[str, Tensor] = {}
    total = size = 0

    def write() -> None:
        save_file(waiting, folder / f"shard-{len(shards)}.safetensors", metadata={"format": "pt"})
        shards.append(list(waiting))
        say(f"shard {len(shards)}: {len(waiting)} tensors, {size / 1e9:.2f} GB")
        waiting.clear()

    for name, recipe in conversion.recipes.items():
        tensor = recipe(checkpoint.read)
        assert tensor.shape == expected[name], (name, tensor.shape, expected[name])
        if waiting and size + tensor.nbytes > checkpoint.largest_shard:
            write()
            size = 0
        waiting[name] = tensor
        size += tensor.nbytes
        total += tensor.nbytes
    write()
    if len(shards) == 1:
        (folder / "shard-0.safetensors").rename(folder / "model.safetensors")
        return
    places: dict[str, str] = {}
    for index, names in enumerate(shards):
        file = f"model-{index + 1:05}-of-{len(shards):05}.safetensors"
        (folder / f"shard-{index}.safetensors").rename(folder / file)
        places.update(dict.fromkeys(names, file))
    tree: Mapping[str, object] = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A new folder next to ``target`` that takes its place at the end; after an error it is gone."""
    temporary = target.parent / f".{target.name}.{os.getpid()}.tmp"
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"TARGET {target} cannot be made ({error.strerror}); choose another folder") from None
    try:
        yield temporary
        if target.is_dir():
            target.rmdir()  # it was empty
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _folder(name: str) -> Path:
    path = Path(name)
    if path.is_dir():
        return path
    try:
        patterns = ["*.json", "*.safetensors", *TRAVELLING]
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise InputError(f"SOURCE {name} is no folder, and no model of the Hub could be fetched ({reason})") from None


def _config(name: str, folder: Path) -> PreTrainedConfig:
    if not (folder / "config.json").is_file():
        raise InputError(f"SOURCE {name} holds no config.json; give a model's folder")
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError, StrictDataclassError) as error:
        raise _unusable(name, error) from None


def _unusable(name: str, error: Exception) -> InputError:
    reason = f"{type(error).__name__}: {error}".split("\n")[0].rstrip(".: ")
    return InputError(f"SOURCE {name}: its config.json cannot be used ({reason})")
