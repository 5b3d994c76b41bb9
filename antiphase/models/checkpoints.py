"""Safetensors checkpoints, read tensor by tensor and written shard by shard to a temporary folder, then renamed."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import (
    AUDIO_TOKENIZER_NAME,
    FEATURE_EXTRACTOR_NAME,
    GENERATION_CONFIG_NAME,
    IMAGE_PROCESSOR_NAME,
    PROCESSOR_NAME,
    VIDEO_PROCESSOR_NAME,
)

from antiphase.base.errors import InputError, named
from antiphase.base.files import read_json
from antiphase.base.folders.permissions import share_weights
from antiphase.base.limits import check_depth
from antiphase.base.records import Record, is_writing, writing
from antiphase.models.conversion import Format, HeadSizes, check_tied, plan_conversion
from antiphase.models.model_card import write_model_card
from antiphase.models.portable import make_portable
from antiphase.models.pretrained import AttendingPreTrainedModel
from antiphase.models.recipes import HEAD, Conversion, tensor_shapes
from antiphase.models.source_configs import DIFF_MLX_WEIGHTS, diff_mlx_config, is_diff_mlx
from antiphase.models.source_formats import current_names, embedding_there, shapes_there
from antiphase.models.sources.failures import asking_hub, usable_config
from antiphase.models.sources.folders import INDEX, local_folder, weight_files
from antiphase.models.sources.gguf import is_gguf, read_header
from antiphase.models.sources.models import check_shapes, check_tensors, is_finite, read_config, read_model
from antiphase.models.sources.tokenizers import check_tokenizer, load_tokenizer

COPIED_FILES = (
    GENERATION_CONFIG_NAME, PROCESSOR_NAME, FEATURE_EXTRACTOR_NAME, IMAGE_PROCESSOR_NAME, VIDEO_PROCESSOR_NAME,
    AUDIO_TOKENIZER_NAME,
)  # fmt: skip
"""Files that are copied unchanged."""
TOKENIZER_FILES = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template*", "*.model",
)  # fmt: skip
"""Files that are copied too, with those that the tokenizer writes when it is saved, unless another one is given."""
RUNS = ("run.yaml", "source-run.yaml")
"""Settings of the run that wrote a folder, and of the run behind a converted one."""
SOURCE = "source"
KEPT = set(AttendingPreTrainedModel._keep_in_fp32_modules_strict)
"""Parameters that keep their dtype."""
SHARD = 2 << 30
"""Largest bytes of a file that is written, which is in memory meanwhile; a larger tensor has a file of its own."""
DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Supported dtypes of weights by their names in safetensors; any other dtype means a quantized model."""


class Checkpoint:
    """A model's folder, whose tensors are memory-mapped and read one at a time."""

    def __init__(self, name: str, tokenizer: str | None = None) -> None:
        """
        Args:
            name: local folder or Hub name.
            tokenizer: folder or Hub name of the tokenizer of a model that has none beside it.

        Raises:
            InputError: the folder does not exist, or its configuration or weights cannot be used.
        """
        self.name, self.folder = name, local_folder(name, SOURCE) or _hub_folder(name)
        self.given = tokenizer
        tree = read_json(self.folder / "config.json", SOURCE, "save the model once more")
        if is_diff_mlx(tree):
            check_depth(tree, named(SOURCE, name))
            self.weights = weight_files(self.folder, name, SOURCE, whole=DIFF_MLX_WEIGHTS)
            with usable_config(name, SOURCE):
                self.config: PreTrainedConfig = diff_mlx_config(tree, self.weights.shapes)
        else:
            self.config = read_config(name, field=SOURCE)
            self.weights = weight_files(self.folder, name, SOURCE)
        self.stored = current_names(self.config, self.weights.shapes)
        self.largest_shard = min(SHARD, max(path.stat().st_size for path in self.weights.files))

    @property
    def dtype(self) -> torch.dtype:
        """Of the model, as transformers loads it: that of the configuration, or of the first tensor in ``DTYPES``."""
        if isinstance(self.config.dtype, torch.dtype):
            return self.config.dtype
        kinds = (self.weights.dtypes[tensor] for tensor in self.stored.values())
        return next((DTYPES[kind] for kind in kinds if kind in DTYPES), torch.float32)

    def digest(self) -> str:
        """SHA-256 of the weight files."""
        found = hashlib.sha256()
        for path in sorted(set(self.weights.places.values())):
            with open(path, "rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
        return found.hexdigest()

    def read(self, name: str) -> Tensor:
        """One tensor of the model, memory-mapped from its file."""
        return self.weights.read(self.stored[name])

    @property
    def model_tensors(self) -> list[str]:
        """Names of the model's own tensors, without a redundant copy of a tied head."""
        return [name for name in self.stored if not (name == HEAD and self.config.tie_word_embeddings)]

    def check_dtypes(self) -> None:
        """Check the dtypes that the files name, without reading a tensor.

        Raises:
            InputError: one is none of ``DTYPES``, as in a quantized model.
        """
        for tensor in self.stored.values():
            if (kind := self.weights.dtypes[tensor]) not in DTYPES:
                raise InputError(
                    f"{named(SOURCE, self.name)}: the tensor {tensor} is of type {kind}, expected one of "
                    f"{', '.join(DTYPES)}"
                )

    def check(self) -> None:
        """Compare the tensors with the configuration and read them all once, at several GB/s.

        Raises:
            InputError: a tensor is missing, unexpected, or of another shape than in the configuration's model or of
                another dtype than ``DTYPES``; or weights are NaN or infinite.
        """
        self.check_dtypes()
        place = named(SOURCE, self.name)
        with usable_config(self.name, SOURCE):
            expected = shapes_there(self.config)
        found = {name: self.weights.shapes[self.stored[name]] for name in self.model_tensors}
        if len(found) < len(self.stored):  # some tools store a redundant copy of the tied head
            check_tied(self.read, place, embedding_there(self.config))
        check_shapes(found, expected, place)
        check_tensors(place, broken=(name for name in found if not is_finite(self.read(name))))

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer in tokenizer.json; without such a file, the one that was given; None if there is neither."""
        if (self.folder / "tokenizer.json").is_file():
            if self.given is not None:
                raise InputError(
                    " has a tokenizer (tokenizer.json)", f"leave out {named('tokenizer')}", field=SOURCE, path=self.name
                )
            return load_tokenizer(str(self.folder), field=SOURCE)
        return None if self.given is None else load_tokenizer(self.given, field="tokenizer")

    def copy_files(self, folder: Path) -> None:
        """Write the tokenizer and the generation settings, as they are if they lie beside the model, and its run's."""
        if self.given is not None and self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)
        for path in self._copied():
            (folder / path).parent.mkdir(exist_ok=True)
            shutil.copy2(self.folder / path, folder / path)
        if (run := run_behind(self.folder)) is not None:
            shutil.copyfile(run, folder / RUNS[1])

    def _copied(self) -> set[Path]:
        """Files that belong to the result, relative to the folder; none of its tokenizer if another one is given."""
        patterns = COPIED_FILES if self.given is not None else (*COPIED_FILES, *TOKENIZER_FILES)
        found = {path.relative_to(self.folder) for pattern in patterns for path in self.folder.glob(pattern)}
        if self.given is None and self.tokenizer is not None:
            with TemporaryDirectory() as scratch:
                self.tokenizer.save_pretrained(scratch)
                found |= {path.relative_to(scratch) for path in Path(scratch).rglob("*")}
        return {path for path in found if (self.folder / path).is_file()}

    def check_words(self, model: PreTrainedModel) -> None:
        """Compare the tokenizer, if there is one, with a model of the configuration's vocabulary."""
        if self.tokenizer is not None:
            place = named(SOURCE, self.name) if self.given is None else named("tokenizer", self.given)
            check_tokenizer(self.tokenizer, model, place)


class GgufCheckpoint(Checkpoint):
    """A GGUF file, dequantized by transformers; the whole model is in memory."""

    def __init__(self, name: str, *, dtype: str | None = None) -> None:
        """
        Args:
            dtype: of the dequantized weights; None: float32.

        Raises:
            InputError: the file cannot be used.
        """
        self.name = name
        self.model, self.read_tokenizer = read_model(
            name, lambda config: AutoModelForCausalLM, field=SOURCE, dtype=dtype
        )
        self.config = self.model.config
        self.state = self.model.state_dict()
        self.largest_shard = SHARD

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def read(self, name: str) -> Tensor:
        return self.state[name]

    def check(self) -> None:
        """Nothing is left to check: ``read_model`` has compared and read all tensors."""

    def copy_files(self, folder: Path) -> None:
        """Write the tokenizer, with its chat template, and the generation settings."""
        self.read_tokenizer.save_pretrained(folder)
        if self.model.generation_config is not None:
            self.model.generation_config.save_pretrained(folder)

    def check_words(self, model: PreTrainedModel) -> None:
        """Checked when the file was read."""


def convert(
    source: str,
    target: str | Path,
    *,
    to: Format | None = None,
    attention_type: str | None = None,
    control: bool = False,
    head_sizes: HeadSizes | None = None,
    dtype: str | None = None,
    tokenizer: str | None = None,
    portable: bool = False,
    say: Callable[[str], None] = lambda message: None,
) -> PreTrainedConfig:
    """Convert a checkpoint folder or a GGUF file into a folder, with its tokenizer and generation settings.

    Peak memory is about two shards of at most 2 GiB, independent of the model's size; a GGUF file is dequantized as a
    whole.

    Args:
        source: local folder, GGUF file or Hub name of a model that ``plan_conversion`` takes.
        target: folder to create.
        to, attention_type, control, head_sizes: as for ``plan_conversion``; ``to`` None means "antiphase", or "llama"
            for a Llama in a GGUF file whose attention stays.
        dtype: of the written weights; None: as in the source, float32 for a GGUF file. λ stays in float32.
        tokenizer: folder or Hub name of the tokenizer to write; only for a source that has none.
        portable: also write the modeling code, so that the folder loads without this package.
        say: called with a message for each shard written.

    Returns:
        The configuration of the new checkpoint.

    Raises:
        InputError: the source cannot be converted, its tokenizer does not fit it, or the target exists; no partial
            target remains.
    """
    given, target = target, Path(os.path.realpath(target))  # a link stays and the folder it points to is filled
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(" exists and is not empty", "choose another folder", field="target", path=given)
    if is_gguf(source):
        if tokenizer is not None:
            raise InputError(" has a tokenizer", f"leave out {named('tokenizer')}", field=SOURCE, path=source)
        read_header(source, SOURCE)  # its faults are reported before the work is announced
        say("dequantizing the weights")
        checkpoint: Checkpoint = GgufCheckpoint(source, dtype=dtype)
        if to is None and attention_type is None and checkpoint.config.model_type == "llama":
            to = "llama"
    else:
        checkpoint = Checkpoint(source, tokenizer)
    to = to or "antiphase"
    if portable and to != "antiphase":
        raise InputError(
            f" cannot be used with a result of format {to}, which transformers loads by itself", field="portable"
        )
    trained = _training_record(source)
    chosen = None if dtype is None else getattr(torch, dtype)
    conversion = plan_conversion(
        checkpoint.config, to=to, attention_type=attention_type, control=control, head_sizes=head_sizes,
        dtype=chosen or checkpoint.dtype,
    )  # fmt: skip
    checkpoint.check()
    config = conversion.config
    with usable_config(source, SOURCE), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    checkpoint.check_words(model)
    with _written_folder(target) as folder:
        _write_shards(conversion, checkpoint, folder, chosen, say)
        config.dtype = chosen or config.dtype
        config.architectures = [type(model).__name__]
        config.__dict__.pop("auto_map", None)  # of a portable folder, whose code is not copied
        config.save_pretrained(folder)
        if portable:
            make_portable(folder)
        checkpoint.copy_files(folder)
        if not any(path for pattern in ("tokenizer*", "vocab.*", "*.model") for path in folder.glob(pattern)):
            say("there is no tokenizer; to read text with the model, convert it again and name one")
        if to == "antiphase" or is_gguf(source):
            write_model_card(model, folder, portable=portable, trained=trained, source=source)
    return config


def run_behind(folder: Path) -> Path | None:
    """The settings of the run that trained a folder's weights, also before a conversion; None: no run is known."""
    return next((path for name in RUNS if (path := folder / name).is_file()), None)


def _training_record(source: str) -> Record | None:
    """The record of the training run in the source; None if it is no finished run."""
    if not (Path(source) / "record.json").is_file():
        return None
    try:
        record = Record.load(source)
    except InputError:  # another tool's file of this name, which a conversion does not need
        return None
    is_whole = record.kind == "train" and record.values.get("diverged") is None
    return record if is_whole and {"tokens", "seed", "final"} <= record.values.keys() else None


def _write_shards(
    conversion: Conversion, checkpoint: Checkpoint, folder: Path, dtype: torch.dtype | None, say: Callable[[str], None]
) -> None:
    """Write the tensors to files no larger than ``largest_shard``, with an index if there are several."""
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
        if dtype is not None and not KEPT & set(name.split(".")):
            tensor = tensor.to(dtype)
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
def _written_folder(target: Path) -> Iterator[Path]:
    """A new folder next to ``target`` that is renamed to it at the end, or deleted after an error.

    Folders that ended processes have left for the same target are removed.
    """
    temporary = target.parent / f".{target.name}.{os.getpid()}.tmp"
    for leftover in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
        if not is_writing(leftover):
            shutil.rmtree(leftover, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise InputError(
            f" cannot be made ({error.strerror})", "choose another folder", field="target", path=target
        ) from None
    try:
        with writing(target):
            yield temporary
            share_weights(temporary)
        if target.is_dir():
            target.rmdir()  # it was empty
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _hub_folder(name: str) -> Path:
    """The local folder of a model from the Hub."""
    with asking_hub(name, SOURCE):
        patterns = ["*.json", "*.jinja", "*.txt", "*.safetensors", *COPIED_FILES, *TOKENIZER_FILES]
        return Path(snapshot_download(name, allow_patterns=patterns))
