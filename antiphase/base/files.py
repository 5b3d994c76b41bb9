"""Files that a person names: their bytes, text, JSON and YAML, or one sentence on what is wrong with which file.

Text is UTF-8, a byte order mark before it is dropped. ``field``: the argument that gave the file, or nothing.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from antiphase.base.errors import InputError, named

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined]  # typeshed has it for 3.12

    import yaml

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LARGEST, LARGEST_YAML = 1 << 27, 1 << 20
"""Bytes of a JSON and of a YAML file: objects take twenty times the memory, and YAML is read at 0.3 MB/s. None that a
command writes or asks for is near that."""
MOST_NODES = 1 << 20
"""Values of a YAML file, those that its aliases repeat counted as often as they are repeated."""
MOST_UNPACKED, SMALL = 200, 1 << 26
"""Bytes that a byte of a compressed file may become, if they are more than ``SMALL``; text becomes four, or ten."""


@contextmanager
def reading(path: str | Path, field: str, remedy: str = "check the path") -> Iterator[None]:
    """Errors of the file system and of the compression, as input errors that name the file."""
    place = named(field, path)
    real = Path(os.path.realpath(path))  # the shell's own pipes, as of <(...), have no place in the file system
    if real.is_fifo() or real.is_char_device():
        raise InputError(
            f"{place}: this is a named pipe or a device, which may never end", "save what it gives to a file first"
        )
    try:
        yield
    except FileNotFoundError:
        link = Path(path).is_symlink()
        raise InputError(f"{place}: {'the link leads nowhere' if link else 'there is no such file'}", remedy) from None
    except IsADirectoryError:
        raise InputError(f"{place}: this is a folder", remedy) from None
    except PermissionError as error:
        raise InputError(f"{place}: the file cannot be read ({error.strerror})", "check its permissions") from None
    except _BombError:
        raise unpacks_to_too_much(path, field) from None
    except (gzip.BadGzipFile, zlib.error, EOFError):
        raise InputError(f"{place}: this is not a whole gzip file", "compress it again") from None
    except OSError as error:
        reason = one_line(error.strerror or str(error))
        raise InputError(f"{place}: the file cannot be read ({reason})", "check that it is whole") from None


def most_unpacked(path: str | Path) -> int:
    """Bytes that the content of a compressed file may have."""
    return max(SMALL, MOST_UNPACKED * os.path.getsize(path))


def unpacks_to_too_much(path: str | Path, field: str) -> InputError:
    """The error for a compressed file with more content than that."""
    return InputError(
        f"{named(field, path)}: it unpacks to more than {MOST_UNPACKED} times its size, which no text does",
        "unpack it yourself if that is meant",
    )


def one_line(reason: object) -> str:
    """A library's message as part of a sentence."""
    return " ".join(str(reason).split()).rstrip(".:")


def open_file(path: str | Path) -> IO[bytes]:
    """A file's bytes, unpacked where its name ends in ``.gz``."""
    return cast(IO[bytes], io.BufferedReader(_Unpacked(path))) if is_packed(path) else open(path, "rb")


def is_packed(path: str | Path) -> bool:
    """Whether a file's name says that it is compressed."""
    return str(path).lower().endswith(".gz")


class _BombError(OSError):
    """A file unpacks to far more than text does."""


class _Unpacked(io.RawIOBase):
    """The content of a gzip file, whose amount is bounded: 26 MB can become 26 GB."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.packed = gzip.open(path, "rb")  # noqa: SIM115 – closed by close()
        self.left = most_unpacked(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        count = self.packed.readinto(buffer)
        self.left -= count
        if self.left < 0:
            raise _BombError
        return count

    def close(self) -> None:
        self.packed.close()
        super().close()


def decode(
    content: bytes, path: str | Path, field: str, *, start: int = 0, line: int | None = 1, encoding: str = "utf-8"
) -> str:
    """``content`` as text; ``start`` is its first byte's position in the file, ``line`` its line, for the message.

    ``line``: None if it is not known.
    """
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        before = content.count(b"\n", 0, error.start)
        known = "" if line is None else f", line {line + before}"
        raise InputError(
            f"{named(field, path)}{known}: the text is not UTF-8 at byte "
            f"{start + error.start} of the file (0x{content[error.start]:02x}); save it as UTF-8"
        ) from None


def is_utf8(path: str | Path, field: str) -> bool:
    """Whether a file of text is UTF-8."""
    with reading(path, field), open_file(path) as file:
        try:
            file.read().decode("utf-8")
        except UnicodeDecodeError:
            return False
    return True


def lines(
    path: str | Path, field: str, *, encoding: str = "utf-8", start: int = 0, end: int | None = None, first: int = 1
) -> Iterator[str]:
    """Lines with their ends, which are ``\n`` only: binary files break nowhere else.

    Args:
        start, end: bytes of the file to read, both at the beginning of a line; only of files that are not compressed.
        first: the number of the first line in the file, for messages.
    """
    position = start
    with reading(path, field), open_file(path) as file:
        if start:  # compressed files, which cannot be cut, cannot seek either
            file.seek(start)
        for number, line in enumerate(file, start=first):
            content = line.removeprefix(BYTE_ORDER_MARK) if position == 0 else line
            begin = position + len(line) - len(content)
            yield decode(content, path, field, start=begin, line=number, encoding=encoding)
            position += len(line)
            if position == end:
                return
    _check_end(path, field, position, end)


def whole_text(path: str | Path, field: str, *, start: int = 0, end: int | None = None) -> str:
    """A file of plain text; a byte order mark and a ``\r`` before ``\n`` are dropped.

    Args:
        start, end: bytes of the file to read, between two characters; only of files that are not compressed.
    """
    with reading(path, field), open_file(path) as file:
        if start:  # compressed files, which cannot be cut, cannot seek either
            file.seek(start)
        content = file.read() if end is None else file.read(end - start)
    _check_end(path, field, start + len(content), end)
    if start == 0:
        return _text(content, path, field)
    return decode(content, path, field, start=start, line=None).replace("\r\n", "\n")


def _check_end(path: str | Path, field: str, position: int, end: int | None) -> None:
    """
    Raises:
        InputError: a part of a file should end elsewhere.
    """
    if end is not None and position != end:
        raise InputError(
            f"{named(field, path)}: the file ends early, or has changed while it was read (byte {position} instead of "
            f"{end})",
            "restore it, then repeat the command",
        )


def read_text(path: str | Path, field: str, remedy: str) -> str:
    """A small file of text that holds something.

    Args:
        remedy: what to do where the file is missing, a folder, empty or too large, for the message.

    Raises:
        InputError: it cannot be read, or is not UTF-8.
    """
    return _whole(path, field, remedy, LARGEST)


def _whole(path: str | Path, field: str, remedy: str, largest: int) -> str:
    with reading(path, field, remedy), open(path, "rb") as file:
        content = file.read(largest + 1)
    return _checked(content, path, field, remedy, largest)


def text_of_input(field: str, remedy: str) -> str:
    """The text of the standard input.

    Raises:
        InputError: it is empty or too large, or not UTF-8.
    """
    return _checked(sys.stdin.buffer.read(LARGEST + 1), "-", field, remedy, LARGEST)


def _checked(content: bytes, path: str | Path, field: str, remedy: str, largest: int) -> str:
    if len(content) > largest:
        raise InputError(f"the file is larger than {largest >> 20} MiB", remedy, field=field, path=path)
    text = _text(content, path, field)
    if not text.strip():
        raise InputError("the file is empty", remedy, field=field, path=path)
    return text


def _text(content: bytes, path: str | Path, field: str) -> str:
    body = content.removeprefix(BYTE_ORDER_MARK)
    return decode(body, path, field, start=len(content) - len(body)).replace("\r\n", "\n")


def read_json(path: str | Path, field: str, remedy: str) -> dict[str, Any]:
    """A file that holds one JSON object.

    Raises:
        InputError: as ``read_text``; or it holds something else.
    """
    tree = parse_json(read_text(path, field, remedy), named(field, path), remedy)
    if not isinstance(tree, dict):
        raise InputError("this is not a JSON object", remedy, field=field, path=path)
    return tree


def parse_json(text: str, place: str, remedy: str) -> Any:
    """The value that a JSON text is; ``place`` names the text.

    Raises:
        InputError: it is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # plain ValueError: a number of thousands of digits
        reason = str(error)
        if isinstance(error, json.JSONDecodeError):
            reason = error.msg if "\n" not in text.rstrip("\n") else f"{error.msg}, line {error.lineno}"
        raise InputError(f"{place}: this is not JSON ({reason})", remedy) from None


def read_yaml(path: str | Path, field: str, remedy: str) -> dict[str, Any]:
    """A file that holds one YAML mapping.

    Raises:
        InputError: as ``read_text``; or it holds something else.
    """
    text = _whole(path, field, remedy, min(LARGEST, LARGEST_YAML))
    tree = parse_yaml(text, named(field, path), remedy)
    if not isinstance(tree, dict) or not tree:
        raise InputError("this is not a YAML mapping", remedy, field=field, path=path)
    return tree


def parse_yaml(text: str, place: str, remedy: str) -> Any:
    """The value that a YAML text is; ``place`` names the text.

    Raises:
        InputError: it is not YAML.
    """
    import yaml  # takes longer than all of ours that a help needs

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if _values_of(node, {}) > MOST_NODES:
            raise ValueError("its aliases repeat too much")
        return None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError, AttributeError, LookupError, TypeError, RecursionError) as error:
        # 2024-02-31 is a ValueError; what is no value of its own tag raises the next three, [[[[... the last
        reason = one_line(error)
        if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
            reason = f"{one_line(error.problem)}, line {error.problem_mark.line + 1}"
        raise InputError(f"{place}: this is not valid YAML ({reason})", remedy) from None


def _values_of(node: yaml.Node | None, known: dict[int, float]) -> float:
    """How many values a node holds, aliases written out; infinite for one that holds itself.

    Raises:
        ValueError: a text in it is none that a file or a tokenizer can take.
    """
    if node is None:
        return 1
    if isinstance(node.value, str):
        if any("\ud800" <= letter <= "\udfff" for letter in node.value):
            raise ValueError("a text in it holds half a surrogate pair")
        return 1
    if id(node) not in known:
        known[id(node)] = math.inf
        parts = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_values_of(part, known) for part in parts)
    return known[id(node)]
