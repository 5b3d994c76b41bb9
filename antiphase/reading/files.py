"""Files that a person names: their bytes, text, JSON and YAML, or one sentence on what is wrong with which file.

Text is UTF-8, a byte order mark before it is dropped. ``flag``: what the file was given with, or nothing, for messages.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from antiphase.errors import InputError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LARGEST = 1 << 29
"""Bytes of a JSON or YAML file: more would fill the memory, and none that a command writes or asks for is near it."""


def place_of(path: str | Path, flag: str) -> str:
    """A file as messages name it."""
    return f"{flag} {path}".lstrip()


@contextmanager
def reading(path: str | Path, flag: str, remedy: str = "check the path") -> Iterator[None]:
    """Errors of the file system and of the compression, as input errors that name the file."""
    place = place_of(path, flag)
    try:
        yield
    except FileNotFoundError:
        link = Path(path).is_symlink()
        raise InputError(
            f"{place}: {'the link leads nowhere' if link else 'there is no such file'}; {remedy}"
        ) from None
    except IsADirectoryError:
        raise InputError(f"{place}: this is a folder; {remedy}") from None
    except PermissionError as error:
        raise InputError(f"{place}: the file cannot be read ({error.strerror}); check its permissions") from None
    except (gzip.BadGzipFile, zlib.error, EOFError):
        raise InputError(f"{place}: this is not a whole gzip file; compress it again") from None
    except OSError as error:
        reason = one_line(error.strerror or str(error))
        raise InputError(f"{place}: the file cannot be read ({reason}); check that it is whole") from None


def one_line(reason: object) -> str:
    """A library's message as part of a sentence."""
    return " ".join(str(reason).split()).rstrip(".:")


def open_file(path: str | Path) -> IO[bytes]:
    """A file's bytes, unpacked where its name ends in ``.gz``."""
    return cast(IO[bytes], gzip.open(path, "rb")) if str(path).lower().endswith(".gz") else open(path, "rb")


def decode(
    content: bytes, path: str | Path, flag: str, *, start: int = 0, line: int = 1, encoding: str = "utf-8"
) -> str:
    """``content`` as text; ``start`` is its first byte's position in the file, ``line`` its line, for the message."""
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        number = line + content.count(b"\n", 0, error.start)
        raise InputError(
            f"{place_of(path, flag)}, line {number}: the text is not UTF-8 at byte "
            f"{start + error.start} of the file (0x{content[error.start]:02x}); save it as UTF-8"
        ) from None


def is_utf8(path: str | Path, flag: str) -> bool:
    """Whether a file of text is UTF-8."""
    with reading(path, flag), open_file(path) as file:
        try:
            file.read().decode("utf-8")
        except UnicodeDecodeError:
            return False
    return True


def lines(
    path: str | Path, flag: str, *, encoding: str = "utf-8", start: int = 0, end: int | None = None, first: int = 1
) -> Iterator[str]:
    """Lines with their ends, which are ``\n`` only: binary files break nowhere else.

    Args:
        start, end: bytes of the file to read, both at the beginning of a line; only of files that are not compressed.
        first: the number of the first line in the file, for messages.
    """
    position = start
    with reading(path, flag), open_file(path) as file:
        file.seek(start)
        for number, line in enumerate(file, start=first):
            content = line.removeprefix(BYTE_ORDER_MARK) if position == 0 else line
            begin = position + len(line) - len(content)
            yield decode(content, path, flag, start=begin, line=number, encoding=encoding)
            position += len(line)
            if position == end:
                return
    _check_end(path, flag, position, end)


def whole_text(path: str | Path, flag: str, *, start: int = 0, end: int | None = None) -> str:
    """A file of plain text; a byte order mark and a ``\r`` before ``\n`` are dropped.

    Args:
        start, end: bytes of the file to read, between two characters; only of files that are not compressed.
    """
    with reading(path, flag), open_file(path) as file:
        file.seek(start)
        content = file.read() if end is None else file.read(end - start)
    _check_end(path, flag, start + len(content), end)
    return decode(content, path, flag, start=start).replace("\r\n", "\n") if start else _text(content, path, flag)


def _check_end(path: str | Path, flag: str, position: int, end: int | None) -> None:
    """
    Raises:
        InputError: a part of a file should end elsewhere.
    """
    if end is not None and position != end:
        raise InputError(
            f"{place_of(path, flag)}: the file ends early, or has changed while it was read (byte {position} instead "
            f"of {end}); restore it, then repeat the command"
        )


def read_text(path: str | Path, flag: str, remedy: str) -> str:
    """A small file of text that holds something.

    Args:
        remedy: what to do where the file is missing, a folder, empty or too large, for the message.

    Raises:
        InputError: it cannot be read, or is not UTF-8.
    """
    with reading(path, flag, remedy), open(path, "rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise InputError(f"{place_of(path, flag)}: the file is larger than {LARGEST >> 20} MiB; {remedy}")
    text = _text(content, path, flag)
    if not text.strip():
        raise InputError(f"{place_of(path, flag)}: the file is empty; {remedy}")
    return text


def _text(content: bytes, path: str | Path, flag: str) -> str:
    body = content.removeprefix(BYTE_ORDER_MARK)
    return decode(body, path, flag, start=len(content) - len(body)).replace("\r\n", "\n")


def read_json(path: str | Path, flag: str, remedy: str) -> dict[str, Any]:
    """A file that holds one JSON object.

    Raises:
        InputError: as ``read_text``; or it holds something else.
    """
    tree = parse_json(read_text(path, flag, remedy), place_of(path, flag), remedy)
    if not isinstance(tree, dict):
        raise InputError(f"{place_of(path, flag)}: this is not a JSON object; {remedy}")
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
        raise InputError(f"{place}: this is not JSON ({reason}); {remedy}") from None


def read_yaml(path: str | Path, flag: str, remedy: str) -> dict[str, Any]:
    """A file that holds one YAML mapping.

    Raises:
        InputError: as ``read_text``; or it holds something else.
    """
    tree = parse_yaml(read_text(path, flag, remedy), place_of(path, flag), remedy)
    if not isinstance(tree, dict) or not tree:
        raise InputError(f"{place_of(path, flag)}: this is not a YAML mapping; {remedy}")
    return tree


def parse_yaml(text: str, place: str, remedy: str) -> Any:
    """The value that a YAML text is; ``place`` names the text.

    Raises:
        InputError: it is not YAML.
    """
    import yaml  # takes longer than all of ours that a help needs

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # 2024-02-31 is a ValueError, [[[[... the last
        reason = one_line(error)
        if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
            reason = f"{one_line(error.problem)}, line {error.problem_mark.line + 1}"
        raise InputError(f"{place}: this is not valid YAML ({reason}); {remedy}") from None
