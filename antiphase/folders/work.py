"""Work that may be stopped: its folder is new, or holds this very work and is gone on with by ``--resume``."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from antiphase.errors import InputError
from antiphase.folders.held import is_free, only_one
from antiphase.reading.files import read_json
from antiphase.records import finite, write_atomically

BROUGHT_BACK = "bring it back as it was, or choose another folder"
"""What to do about a kept file that was changed into something else."""
START_SETTING = "training.start_from"
"""End of the name under which a run or arm says where its weights come from. They may have moved since the work began;
that they are the same is checked by their content.
"""


@dataclass(frozen=True)
class Resumable:
    """A kind of work: the file in its folder by which it is known, and what is said of a folder that it cannot use."""

    file: str
    foreign: str = "exists and is not empty; choose another folder"
    """Where there is something else."""
    again: str = "already contains this work; add --resume to continue it, or choose another folder"
    """Where it was begun, and ``--resume`` is missing."""
    other: str = "holds work with other settings ({names}); choose another"
    """Where it was begun with others."""

    @classmethod
    def named(cls, noun: str, file: str) -> Resumable:
        """A kind of work with a name of its own."""
        return cls(
            file,
            foreign=f"exists and holds no {noun} of antiphase; choose another folder",
            again=f"already contains a {noun}; add --resume to continue it, or choose another folder",
            other=f"holds a {noun} with other settings ({{names}}); choose another folder",
        )

    def begun(self, output: Path, *, resume: bool) -> bool:
        """Whether the folder holds such work, to go on with; False: it is free for it. Writes nothing.

        Raises:
            InputError: it holds something else, or such work without ``resume``.
        """
        if not (output / self.file).is_file():
            if not is_free(output):
                raise InputError(f"--output {output} {self.foreign}")
            return False
        if not resume:
            raise InputError(f"--output {output} {self.again}")
        return True

    @contextmanager
    def held(self, output: Path, *, resume: bool) -> Iterator[None]:
        """Hold the folder, if it can be used; a folder of something else gets no lock.

        Raises:
            InputError: as ``begun``; or another process works in it.
        """
        self.begun(output, resume=resume)
        with only_one(output):
            self.begun(output, resume=resume)  # once more: another process may have worked here meanwhile
            yield

    def check_same(
        self, output: Path, before: Mapping[str, Any], now: Mapping[str, Any], *, free: Container[str] = ()
    ) -> None:
        """
        Args:
            before, now: settings by name, as the work began and as they are given.
            free: names of settings that may change, because they change no result.

        Raises:
            InputError: others differ; it names them.
        """
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name) and name not in free]
        moved = {name for name in changed if name.endswith(START_SETTING) and before.get(name) and now.get(name)}
        if names := ", ".join(name for name in changed if name not in moved):
            raise InputError(f"--output {output} {self.other.format(names=names)}")


class Work:
    """What a command was asked for, and what it was done on, in a JSON file of its folder."""

    KIND = Resumable("request.json")
    FREE = ("device", "parts")
    """What has been done stays true on another device and with other parts."""

    def __init__(self, output: Path, request: Any) -> None:
        self.output, self.path, self.request = output, output / self.KIND.file, finite(asdict(request))

    def check(self, *, resume: bool) -> None:
        """
        Raises:
            InputError: the folder holds something else, or ``resume`` is missing.
        """
        if self.KIND.begun(self.output, resume=resume):
            self.KIND.check_same(self.output, self._kept()["request"], self.request, free=self.FREE)

    def begin(self, contents: Mapping[str, Any], changed: Mapping[str, str]) -> None:
        """Keep what is worked on, or refuse to go on with anything else.

        Args:
            contents: digests.
            changed: what is said of each that is another one now.

        Raises:
            InputError: a content changed since the work began.
        """
        if not self.path.is_file():
            tree = {"request": self.request, **contents}
            write_atomically(self.path, (json.dumps(tree, indent=1) + "\n").encode())
        before = self._kept()
        for name, content in contents.items():
            if before.get(name) != content:
                raise InputError(
                    f"--output {self.output}: {changed[name]} since this work began; choose another folder"
                )

    def _kept(self) -> dict[str, Any]:
        """
        Raises:
            InputError: the file was changed into something that cannot be read.
        """
        tree = read_json(self.path, "--output", BROUGHT_BACK)
        if not isinstance(tree.get("request"), dict):
            raise InputError(f"--output {self.path}: the file does not say what was asked for; {BROUGHT_BACK}")
        return tree


@contextmanager
def work_in(output: Path, request: Any, *, resume: bool) -> Iterator[Work]:
    """Hold the folder of what a request, a dataclass, asks for: a new one, or one that holds this very work.

    Raises:
        InputError: it holds something else, or is in use.
    """
    work = Work(output, request)
    work.check(resume=resume)  # a folder of something else gets no lock
    with only_one(output):
        work.check(resume=resume)
        yield work
