"""Ownership of output folders: checks, locks, atomic creation, and cleanup after refused input."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from antiphase.base.errors import InputError
from antiphase.base.folders.holders import HOLDER, confirm_held, held, held_elsewhere
from antiphase.base.folders.permissions import share_weights
from antiphase.base.records import command_line, is_writing, write_atomically, writing

LOCK = ".lock"
UNFINISHED = ".unfinished"
"""In the folder of a command that cannot be resumed, until it ends: the command, which may be repeated."""


def is_free(folder: Path, *, but: Container[str] = ()) -> bool:
    """Whether work may begin here: the folder is missing, empty, or left by work that was killed at its start.

    Args:
        but: names of files that such work may have written.
    """
    if not folder.exists():
        return True
    return folder.is_dir() and all(
        path.name in (LOCK, HOLDER) or path.name in but or (path.name.startswith(".") and path.suffix == ".tmp")
        for path in folder.iterdir()
    )


def refused(folder: Path, problem: str, remedy: str = "choose another folder") -> InputError:
    """What is wrong with the folder that a command was given for its results."""
    return InputError(problem, remedy, field="output", path=folder)


def check_empty(folder: Path) -> None:
    """Check that a folder is free for a measurement, or left by the same command, which was killed.

    Raises:
        InputError: the folder is not empty, or is a file.
    """
    if not is_free(folder) and not _is_left_by_this(folder):
        raise refused(folder, " exists and is not empty")


def _is_left_by_this(folder: Path) -> bool:
    path = folder / UNFINISHED
    return path.is_file() and path.read_bytes() == command_line().encode()


@contextmanager
def unfinished(folder: Path) -> Iterator[None]:
    """Mark a new folder until the command has written everything; where a kill or a full disk ends it, it is repeated.

    A refusal after the record, of which only the page can be the cause, keeps the mark as well.

    Raises:
        InputError: the folder is not empty, or cannot be created.
    """
    check_empty(folder)
    made, path = make_folder(folder), folder / UNFINISHED
    is_first = not path.is_file()
    write_atomically(path, command_line().encode())
    _remove_leftovers(folder)
    try:
        yield
    except InputError:
        is_kept = any(other.name not in (LOCK, HOLDER, UNFINISHED) for other in folder.iterdir())  # its page failed
        if is_first and not is_kept:
            path.unlink(missing_ok=True)
        if made and not any(other.name != LOCK for other in folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    path.unlink(missing_ok=True)


def make_folder(folder: Path) -> bool:
    """Create the folder of results; False if it already exists.

    Raises:
        InputError: it cannot be created.
    """
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        if folder.is_dir():
            return False
        raise refused(folder, f" cannot be made ({error.strerror})") from None
    return True


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Lock the folder for this process; create it if it is missing, and remove it if it stays empty.

    A lock ends with its process. Where another machine held the folder and died, it is free a minute later
    (``holders.py``).

    Raises:
        InputError: another process uses it, it cannot be created, or it holds a link, a pipe or a device.
    """
    made = make_folder(folder)
    _check_own(folder)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise refused(folder, " is in use by another process", "wait for it or choose another folder") from None
    try:
        if (other := held_elsewhere(folder)) is not None:
            in_use = f" is in use by another process on {other.host}"
            raise refused(folder, in_use, "wait for it or choose another folder")
        with held(folder):
            _remove_leftovers(folder)
            yield
    finally:
        lock.release()
        if made and not any(path.name != LOCK for path in folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)


def _check_own(folder: Path) -> None:
    """Look for what would be read, written or deleted through: a run that somebody else began may hold links to any
    file or folder, at any depth. The folder itself may be a link, which its user names.

    Raises:
        InputError: something in it is a link, a pipe or a device.
    """
    for home, folders, files in os.walk(folder):
        for path in (Path(home, name) for name in sorted((*folders, *files))):
            shown = path.relative_to(folder)
            if path.is_symlink():
                what = "folder would be changed" if path.is_dir() else "file would be overwritten"
                raise refused(folder, f"{shown} is a link, so another {what}", "put a copy there")
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise refused(folder, f"{shown} is a pipe or a device", "remove it")


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files of ``write_atomically`` whose writers were killed."""
    for path in folder.glob(".*.tmp"):
        if path.is_file() and not is_writing(path):
            path.unlink(missing_ok=True)


def is_in_use(folder: Path) -> bool:
    """Whether a process of this machine or of another one that lives has locked the folder."""
    if not (folder / LOCK).is_file():
        return False
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return held_elsewhere(folder) is not None


@contextmanager
def undone_if_refused(folder: Path, *, unless: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Remove new files from the folder if the user's input is refused, so that the corrected command starts afresh.

    Use it only within ``only_one`` of this folder or its parent: otherwise, new files may be another process's.

    Args:
        unless: whether there are results, which stay.
    """
    before = set(folder.iterdir()) if folder.is_dir() else None
    try:
        yield
    except InputError:
        if unless():
            raise
        if before is None:
            shutil.rmtree(folder, ignore_errors=True)
        elif folder.is_dir():
            for path in set(folder.iterdir()) - before:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
        raise


@contextmanager
def new_folder(folder: Path, *beside: Path) -> Iterator[None]:
    """Lock a new folder for one piece of work; if the input is refused, remove its files, also those in ``beside``.

    Raises:
        InputError: the folder is not empty, another process uses it, or it cannot be created.
    """
    check_empty(folder)
    with only_one(folder), ExitStack() as stack:
        check_empty(folder)  # check again, because another process may have finished meanwhile
        for path in (folder, *beside):
            stack.enter_context(undone_if_refused(path))
        yield


@contextmanager
def written_beside(target: Path, *, aside: Path | None = None) -> Iterator[Path]:
    """A new folder that is renamed to ``target`` once it is complete and on disk; an interruption leaves no ``target``.

    Use it only within ``only_one`` of the parent folder, because it removes leftovers of killed writes there.

    Args:
        aside: the name that a folder at ``target`` gets just before; what an interruption left there is removed. None
            means that there is none at ``target``.

    Raises:
        Interrupted: another machine holds the folder by now; nothing was removed.
    """
    confirm_held()
    for leftover in filter(Path.is_dir, target.parent.glob(".*.tmp")):
        shutil.rmtree(leftover)
    beside = place_beside(target)
    try:
        with writing(target):
            beside.mkdir(parents=True)
            yield beside
            share_weights(beside)
            for path in (*beside.rglob("*"), beside):
                sync(path)
            confirm_held()
            if aside is not None and target.exists():
                if aside.exists():
                    shutil.rmtree(aside)
                target.rename(aside)
            beside.rename(target)
            sync(target.parent)
    finally:
        confirm_held()  # what has the name by now may be the other machine's
        shutil.rmtree(beside, ignore_errors=True)


def place_beside(target: Path) -> Path:
    """The folder of ``written_beside``, for other processes that write into it."""
    return target.with_name(f".{target.name}.tmp")


def sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
