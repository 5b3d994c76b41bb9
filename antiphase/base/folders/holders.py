"""Who holds a folder, for processes of other machines: a file that names the holder, who touches it while it lives.

A lock of the file system (``flock``) ends with its process, and decides between processes of one machine. Between
machines that is true only of some file systems. So a holder also writes ``.holder`` (its machine, process and a random
token) and touches it every ``BEAT`` seconds. A process of another machine may take the folder over once nobody has
touched the file for ``EXPIRES`` seconds; both times are read from the clock of the storage, by touching a file, so
that clocks of machines need not agree. A holder that was suspended for so long finds another token in the file, or no
file once the other one has ended, at its next beat or before it writes, and ends without writing. No clock of its own
tells it that it slept: that of a suspended virtual machine stands still.
"""

from __future__ import annotations

import json
import os
import platform
import stat
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from antiphase.base.errors import Interrupted, complain
from antiphase.base.records import write_atomically

HOLDER = ".holder"
LONGEST = 1 << 16
"""Bytes of that file."""
BEAT, EXPIRES = 10.0, 60.0
"""Seconds between touches, and after which a machine that does not touch the file counts as dead."""

_held: dict[Path, Holder] = {}
"""Folders that this process holds."""


@dataclass(frozen=True)
class Holder:
    """The process that holds a folder."""

    machine: str
    """One run of one kernel: ``flock`` decides between its processes."""
    host: str
    process: int
    token: str


@cache
def machine() -> str:
    """Identifies this run of this machine's kernel, which containers share."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.is_file() else f"{platform.node()}-{uuid.getnode():x}"


def holder_of(folder: Path) -> Holder | None:
    """The holder that the folder names; None if it names none, or only half of one."""
    try:
        return Holder(**json.loads(_content(folder / HOLDER)))
    except (FileNotFoundError, ValueError, TypeError, RecursionError):
        return None


def _content(path: Path) -> bytes:
    """The beginning of a file; nothing where a pipe or a device has its name, which are not waited for."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        return file.read(LONGEST) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""


def held_elsewhere(folder: Path) -> Holder | None:
    """A living holder on another machine; None if there is none."""
    found = holder_of(folder)
    if found is None or found.machine == machine():
        return None
    age = _silence(folder)
    return found if age is not None and abs(age) < EXPIRES else None  # a time to come: the clock went back, unnoticed


def _silence(folder: Path) -> float | None:
    """Seconds since the holder touched its file, by the clock of the storage; None if the file is gone.

    The file is opened, because only that makes a network file system ask the server for the time of the last touch.
    """
    clock = folder / f"{HOLDER}.{uuid.uuid4().hex[:8]}.{os.getpid()}.tmp"
    try:
        with open(folder / HOLDER, "rb") as file:
            touched = os.fstat(file.fileno()).st_mtime
        with open(clock, "wb") as file:
            file.write(b".")
            os.utime(file.fileno())  # by number: a holder that begins may just have removed the name
            return os.fstat(file.fileno()).st_mtime - touched
    except FileNotFoundError:
        return None
    finally:
        clock.unlink(missing_ok=True)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Name this process as the holder of a folder whose lock it has, and touch the file until the end."""
    own = Holder(machine(), platform.node(), os.getpid(), uuid.uuid4().hex)
    write_atomically(folder / HOLDER, json.dumps(asdict(own)).encode())
    _held[folder] = own
    ended = threading.Event()
    beats = threading.Thread(target=_beat, args=(folder, own, ended), name="antiphase-holder", daemon=True)
    beats.start()
    try:
        yield
    finally:
        ended.set()
        beats.join()
        _held.pop(folder)
        if holder_of(folder) == own:
            (folder / HOLDER).unlink(missing_ok=True)


def confirm_held() -> None:
    """Check that no other machine has taken a folder over, before something is written that cannot be taken back.

    Raises:
        Interrupted: another machine holds it by now, or has held it.
    """
    for folder, own in list(_held.items()):
        if (taken := _taken_over(folder, own)) is not None:
            raise Interrupted(f"{taken} while this one did not run")


def _taken_over(folder: Path, own: Holder) -> str | None:
    """What happened to a folder that this process held; None if it still does, or if the folder is gone."""
    found = holder_of(folder)
    if found == own or not folder.is_dir():
        return None
    if found is None:
        return f"{folder} names this process as its holder no more: another one has used it"
    return f"{folder} was taken over by a process on {found.host}"


def _beat(folder: Path, own: Holder, ended: threading.Event) -> None:
    """Touch the file from time to time; end the process if another one has taken the folder over."""
    touched = time.monotonic()
    while not ended.wait(BEAT):
        try:
            if (taken := _taken_over(folder, own)) is not None:
                complain(f"{taken}; this one ends")
                os._exit(1)  # the main thread may be about to write
            os.utime(folder / HOLDER)
            touched = time.monotonic()
        except FileNotFoundError:
            return  # the folder was removed; nobody else can mistake it for theirs
        except OSError as error:  # the storage does not answer: others will take this process for dead
            if time.monotonic() - touched > EXPIRES - BEAT:
                complain(f"{folder} cannot be reached ({error.strerror}); this process ends")
                os._exit(1)
