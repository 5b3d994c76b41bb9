"""A folder belongs to one process and one piece of work: free, held, or there as a whole; what is refused is undone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from antiphase.errors import InputError

LOCK = ".lock"


def is_free(folder: Path) -> bool:
    """Whether work may begin here: there is nothing, or what one left behind that was killed at once."""
    if not folder.exists():
        return True
    return folder.is_dir() and all(
        path.name == LOCK or (path.name.startswith(".") and path.suffix == ".tmp") for path in folder.iterdir()
    )


def check_empty(folder: Path) -> None:
    """A measurement goes into a folder of its own.

    Raises:
        InputError: the folder holds something, or is a file.
    """
    if not is_free(folder):
        raise InputError(f"--output {folder} exists and is not empty; choose another folder")


def make_folder(folder: Path) -> bool:
    """Make the folder of ``--output``; False where it is there already.

    Raises:
        InputError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        if folder.is_dir():
            return False
        raise InputError(f"--output {folder} cannot be made ({error.strerror}); choose another folder") from None
    return True


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; make it if it is missing, and take it away if nothing was put into it.

    Raises:
        InputError: another process works in it, or it cannot be made.
    """
    made = make_folder(folder)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"--output {folder} is in use by another process; wait for it or choose another folder"
        ) from None
    try:
        yield
    finally:
        lock.release()
        if made and not any(path.name != LOCK for path in folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)


def is_in_use(folder: Path) -> bool:
    """Whether a process works in the folder."""
    if not (folder / LOCK).is_file():
        return False
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


@contextmanager
def undone_if_refused(folder: Path) -> Iterator[None]:
    """Take away what appears in the folder, if what a person gave is refused: the corrected command starts afresh.

    Only within ``only_one``, of this folder or of the one that it belongs to: what appears is else another process's.
    """
    before = set(folder.iterdir()) if folder.is_dir() else None
    try:
        yield
    except InputError:
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
    """Hold a new folder for one piece of work; if that is refused, nothing of it stays, nor in folders beside.

    Raises:
        InputError: the folder holds something, another process works in it, or it cannot be made.
    """
    check_empty(folder)
    with only_one(folder), ExitStack() as stack:
        check_empty(folder)  # once more: another process may have finished meanwhile
        for path in (folder, *beside):
            stack.enter_context(undone_if_refused(path))
        yield


@contextmanager
def written_beside(target: Path) -> Iterator[Path]:
    """A new folder that takes the name ``target`` when it is whole and on the disk; a stop leaves nothing of that name.

    Only within ``only_one`` of the folder around: what killed writes have left there is removed.
    """
    for leftover in filter(Path.is_dir, target.parent.glob(".*.tmp")):
        shutil.rmtree(leftover)
    beside = target.with_name(f".{target.name}.tmp")
    beside.mkdir(parents=True)
    yield beside
    for path in (*beside.rglob("*"), beside):
        _sync(path)
    beside.rename(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
