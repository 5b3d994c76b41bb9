"""The result record: what was measured, with the settings, seeds, versions and command that produced it.

A record is ``NAME.json``, with its arrays in ``NAME.safetensors``. Every measurement writes one, and tables and figures
are made from records only.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphase.base.errors import InputError, named
from antiphase.base.files import one_line, read_json, reading

if TYPE_CHECKING:
    import numpy

FORMAT = 1
PAGE = "report.html"
"""Name of the page that a command writes beside its record."""
DEQUANTIZED = "dequantized_from"
"""Key of a record's configuration: quantizations that the weights of models went through, by the models' names."""
CHECKSUM = "sha256"
"""Key of the digest of all else in a record."""
ARRAYS_CHECKSUM = "arrays_sha256"
"""Key of the digest of the file with its arrays."""
BELONGS = "belongs_to"
"""Key of the digests of those of ``IDENTITIES`` that lay beside a record when it was written."""
IDENTITIES = (
    "run.yaml", "compare.yaml", "request.json", "journal.jsonl", "text.sha256", "start.sha256", "model.sha256",
)  # fmt: skip
"""Files that say what a folder's work is: settings, and digests of text and weights. Each is written once, before the
record, except that a journal grows after its first line, which says what is measured."""
LONGEST_LINE = 1 << 27
GIVE_A_RUN = "give the folder of a run"
PACKAGES = ("antiphase", "torch", "transformers", "tokenizers", "numpy")


@dataclass(kw_only=True)
class Record:
    """A measurement and everything needed to repeat it."""

    kind: str
    """What was measured: ``train``, ``compare``, ``evaluate-needles``, ..."""
    values: dict[str, Any]
    """The results; NaN and infinities become null."""
    config: dict[str, Any] = field(default_factory=dict)
    """Resolved settings."""
    seeds: list[int] = field(default_factory=list)
    seconds: float | None = None
    """Wall-clock time of the measurement."""
    command: str = field(default_factory=lambda: command_line())
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    """UTC, ISO 8601."""
    environment: dict[str, Any] = field(default_factory=lambda: environment())
    format: int = FORMAT
    arrays: dict[str, numpy.ndarray] = field(default_factory=dict, repr=False)
    """Named arrays, stored in the safetensors file."""

    def save(self, folder: str | Path, name: str = "record") -> Path:
        """Write ``NAME.json`` (and ``NAME.safetensors``) in ``folder``, each atomically; return the JSON path.

        The JSON has a checksum of the arrays and of the work whose folder it is, so that ``load`` refuses those of
        another record, and the record itself in the folder of other work.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        arrays = self._packed_arrays()
        if arrays is not None:
            write_atomically(folder / f"{name}.safetensors", arrays)
        path = folder / f"{name}.json"
        write_atomically(path, (self._text(arrays, identity(folder)) + "\n").encode())
        if not self.arrays:  # arrays of an earlier record with this name do not belong to this one
            (folder / f"{name}.safetensors").unlink(missing_ok=True)
        return path

    def text(self, folder: Path | None = None) -> str:
        """The record as JSON, with checksums, without its arrays, as ``save`` writes it in a folder."""
        return self._text(self._packed_arrays(), None if folder is None else identity(folder))

    def _text(self, arrays: bytes | None, belongs: dict[str, str] | None = None) -> str:
        tree = finite({key: value for key, value in self.__dict__.items() if key != "arrays"})
        if belongs:
            tree[BELONGS] = belongs
        if arrays is not None:
            tree[ARRAYS_CHECKSUM] = hashlib.sha256(arrays).hexdigest()
        return _json({**tree, CHECKSUM: _checksum(tree)})

    def _packed_arrays(self) -> bytes | None:
        if not self.arrays:
            return None
        import numpy
        from safetensors.numpy import save

        # safetensors writes the memory of a transposed or strided view unchanged, and so in the wrong order
        return save({key: numpy.asarray(array, order="C") for key, array in self.arrays.items()})

    @classmethod
    def load(cls, path: str | Path, *, is_resumed: bool = False) -> Record:
        """Read a record from its JSON file, or from the folder that holds ``record.json``.

        Args:
            is_resumed: whether the folder's work would end with this record, which must then say that it belongs there.

        Raises:
            InputError: the file is missing, is not a record, is damaged, was written by a newer version, or belongs to
                other work than the folder's.
        """
        path = Path(path)
        if path.is_dir():
            path = path / "record.json"
        refused = functools.partial(InputError, path=path)
        tree = read_json(path, "", "give a record of antiphase, or the folder that holds one")
        if not {"kind", "values", "format"} <= tree.keys():
            raise refused(" is not a record of antiphase: it lacks kind, values or format", GIVE_A_RUN)
        kinds = {"kind": str, "values": dict, "format": int, "config": dict, "seeds": list, "environment": dict}
        wrong = [name for name, kind in kinds.items() if not isinstance(tree.get(name, kind()), kind)]
        if wrong:
            raise refused(f" is not a record of antiphase: {wrong[0]} is not what it should be", GIVE_A_RUN)
        if tree["format"] > FORMAT:
            raise refused(
                f" has record format {tree['format']}", f"this version reads up to {FORMAT}; update antiphase"
            )
        if not _has_checksum(tree, tree.pop(CHECKSUM, None)):
            raise refused(" was changed after it was written", "restore it, or repeat its command")
        if is_resumed and BELONGS not in tree:
            raise refused(
                " does not say which work it belongs to", f"remove it and repeat the command with {named('resume')}"
            )
        _check_place(path, tree.get(BELONGS))
        known = {key: tree[key] for key in cls.__dataclass_fields__ if key in tree}
        record = cls(**known)
        arrays = path.with_suffix(".safetensors")
        if arrays.is_file():
            from safetensors import SafetensorError
            from safetensors.numpy import load

            try:
                with reading(arrays, ""):
                    content = arrays.read_bytes()
                if hashlib.sha256(content).hexdigest() != tree.get(ARRAYS_CHECKSUM):
                    raise InputError(
                        f" holds other arrays than {path.name} was written with", "restore both files", path=arrays
                    )
                record.arrays = load(content)
            except SafetensorError as error:
                raise InputError(
                    f"these are not the arrays of a record ({one_line(error)})", "restore the file", path=arrays
                ) from None
        return record

    def origins(self) -> list[str]:
        """A sentence for each model whose weights were dequantized."""
        found = self.config.get(DEQUANTIZED) or {}
        return [f"{name}: the weights were {dequantized(origin)}." for name, origin in found.items()]


def identity(folder: Path) -> dict[str, str]:
    """SHA-256 of each file in a folder that says what its work is, by name; empty for a folder of records alone."""
    found = {}
    for path in (folder / name for name in IDENTITIES):
        if path.is_file():
            with reading(path, ""), open(path, "rb") as file:
                content = file.readline(LONGEST_LINE) if path.suffix == ".jsonl" else file.read()
            found[path.name] = hashlib.sha256(content).hexdigest()
    return found


def _check_place(path: Path, belongs: Any) -> None:
    """
    Args:
        belongs: the digests that a record has; None: it does not say where it belongs.

    Raises:
        InputError: the record's folder is of other work.
    """
    if belongs is None:
        return
    kept = belongs if isinstance(belongs, dict) else {}
    if other := [name for name, digest in identity(path.parent).items() if kept.get(name) != digest]:
        raise InputError(
            f"{named('', path)} is the record of other work than {other[0]} beside it tells of",
            f"restore it, or remove it and repeat the command with {named('resume')}",
        )


def _json(tree: Any) -> str:
    return json.dumps(tree, indent=1, ensure_ascii=False, allow_nan=False)


def _checksum(tree: Any) -> str:
    return hashlib.sha256(_json(tree).encode(errors="surrogatepass")).hexdigest()


def _has_checksum(tree: Any, checksum: Any) -> bool:
    try:
        return checksum == _checksum(tree)
    except ValueError:  # a number that no record holds, such as NaN
        return False


def dequantized(quantization: str) -> str:
    """What must be known of weights that were quantized, by the name of the quantization: 4 bits of ``IQ4_XS``."""
    bits = next((sign for sign in quantization if sign.isdigit()), "few")
    return f"dequantized from {quantization}, so figures of this model are those of a model of {bits} bits"


def write_atomically(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write to a temporary file and rename it, so that neither a reader nor a crash ever sees a partial file.

    Args:
        content: the bytes, or parts of them, which are never in memory together.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with writing(path):
            with open(temporary, "wb") as file:
                file.writelines([content] if isinstance(content, bytes) else content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(path: Path) -> None:
    """Remove what processes of this machine left behind that were killed while they wrote ``path``.

    On shared storage only one machine at a time may write a file: the other's temporary file looks like a dead one's.
    """
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        if not is_writing(temporary):
            temporary.unlink(missing_ok=True)


def is_writing(temporary: Path) -> bool:
    """Whether another process that may write ``.NAME.PROCESS.tmp`` is running here; a killed one left it behind."""
    process = temporary.suffixes[-2].removeprefix(".") if len(temporary.suffixes) > 1 else ""
    if process == str(os.getpid()):  # in containers numbers come again
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (ValueError, OverflowError, PermissionError):  # no number of ours, or another user's process
        return True
    return True


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Errors of the file system, also as safetensors and tokenizers raise them, as an OSError that names ``path``."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # the Rust side of tokenizers raises Exception itself
        found = re.search(r"\(os error (\d+)\)", str(error))
        code = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
        if code is None:
            raise
        raise OSError(code, os.strerror(code), str(path)) from error


def finite(value: Any) -> Any:
    """``value`` as plain JSON types, with NaN and infinities as None, and without ``typed.OPTIONAL`` fields of None."""
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        found = [(item, getattr(value, item.name)) for item in fields(value)]
        value = {item.name: one for item, one in found if one is not None or "optional" not in item.metadata}
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if hasattr(value, "tolist"):
        return finite(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


def command_line() -> str:
    """The running command, as a user would type it."""
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    if program == "__main__.py":
        program = "antiphase"
    return shlex.join([program, *sys.argv[1:]])


def environment() -> dict[str, Any]:
    """Versions and hardware; those of torch only if torch is already loaded."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "revision": _revision(),
    }
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    torch = sys.modules.get("torch")
    if torch is not None:
        found["threads"] = torch.get_num_threads()
        found["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


@functools.cache
def _revision() -> str | None:
    """Commit of the source tree of the package when the process first asked; None for an installed wheel."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=root, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
