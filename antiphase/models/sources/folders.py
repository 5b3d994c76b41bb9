"""The folder of a model: which files it must have, and what its safetensors hold, from their headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from antiphase.base.errors import InputError, named
from antiphase.base.files import one_line, read_json

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
PICKLED = ("bin", "pt", "pth", "ckpt")


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


def local_folder(name: str, field: str) -> Path | None:
    """The folder of this name, looked through; None: a name that only the Hub may know.

    Raises:
        InputError: a file, a folder without a configuration, or with files that hold something else than they should.
    """
    folder = Path(name)
    if not folder.is_dir():
        if folder.exists() or not name:
            remedy = (
                f"what this writes: antiphase convert {name} NEW" if folder.suffix == ".gguf" else "a model's folder"
            )
            raise InputError("this is not a folder", f"give {remedy}", field=field, path=name)
        if is_local(name, folder):
            raise InputError("there is no such folder", "check the path", field=field, path=name)
        return None
    if (folder / ADAPTER).exists():
        raise InputError(
            f"{named(field, name)}: {ADAPTER} names another model, whose weights would be read from there",
            "merge the adapter into its model, and give the folder of the result",
        )
    if not (folder / "config.json").is_file():
        runs = sorted(path.parent for path in folder.glob("*/config.json"))
        remedy = f"give the folder of one, such as {runs[0]}" if runs else "give the folder of one"
        raise InputError("this folder holds no model (config.json is missing)", remedy, field=field, path=name)
    check_files(folder, field)
    return folder


def is_local(name: str, path: Path) -> bool:
    """Whether a name that no file or folder has is a mistyped path rather than one of the Hub."""
    return path.is_absolute() or name[:1] == "." or name.count("/") > 1 or ("/" in name and path.parent.is_dir())


def check_files(folder: Path, field: str) -> None:
    """Look at all files that transformers may open.

    Raises:
        InputError: a pipe or a device, or JSON files that hold no object.
    """
    for path in (*folder.iterdir(), *(folder / "additional_chat_templates").glob("*")):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError("this is a pipe or a device, which may never end", "remove it", field=field, path=path)
    for file in OBJECTS:
        if (folder / file).exists() or (folder / file).is_symlink():
            read_json(folder / file, field, "save the model once more")


def weight_files(folder: Path, name: str, field: str, *, whole: str = WHOLE) -> WeightFiles:
    """What the folder of a model holds, without its numbers.

    Args:
        whole: name of a file that holds all of it; where there is none, the index or all files count.

    Raises:
        InputError: no safetensors (pickled weights are never read), a file that is missing or damaged, or a tensor that
            the index names and no file holds.
    """
    place = named(field, name)
    paths = sorted(folder.glob("*.safetensors"))
    listed: dict[str, str] = {}
    if (folder / whole) in paths:  # first, as transformers does: an index beside it is of other files
        paths = [folder / whole]
    elif (folder / INDEX).is_file():
        listed = _listed_in(folder / INDEX, field)
        if missing := sorted(set(listed.values()) - {path.name for path in paths}):
            raise InputError(f"{place} lacks {missing[0]}, which its {INDEX} names", "download or copy it again")
        paths = [path for path in paths if path.name in listed.values()]
    if not paths:
        pickled = [path.name for end in PICKLED for path in sorted(folder.glob(f"*.{end}"))]
        found = f"{pickled[0]} is a pickle file, which is never opened: save it as safetensors" if pickled else ""
        raise InputError(f"{place} holds no safetensors", f"{found or 'give a folder that holds the weights'}")
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
            raise InputError(f"{place}: {path.name} is damaged ({one_line(error)})", "copy or save it again") from None
    if lacking := sorted(tensor for tensor in listed if tensor not in shapes and not tensor.endswith(REBUILT)):
        raise InputError(f"{place} lacks the tensor {lacking[0]}, which its {INDEX} names", "download or copy it again")
    return WeightFiles(tuple(paths), shapes, dtypes, places)


def _listed_in(path: Path, field: str) -> dict[str, str]:
    """{tensor: file} of an index."""
    remedy = "save the model once more"
    found = read_json(path, field, remedy).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise InputError(" is damaged: its weight_map names no files", remedy, field=field, path=path)
    return found
