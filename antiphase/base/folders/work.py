"""Interruptible work: its folder is new, or holds the same work, which is continued if it should be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphase.base.errors import named
from antiphase.base.files import read_json
from antiphase.base.folders.ownership import is_free, only_one, refused
from antiphase.base.records import finite, write_atomically

BROUGHT_BACK = "restore it, or choose another folder"
"""Remedy for a stored file that was changed."""
REQUEST = "request.json"
"""Of a command: its settings, and digests of what it reads."""
MAY_CHANGE = (
    "device", "device_map", "parts", "description", "compare.processes", "training.threads", "training.mesh.replicate",
    "training.mesh.shard", "training.mesh.context", "training.mesh.tensor", "training.micro_batch_size",
    "training.gradient_checkpointing", "training.checkpoint_every", "training.hang_limit", "data.cache",
    "data.tokenizer", "data.workers",
)  # fmt: skip
"""Settings that resumed work may change, by dotted names, a run's without ``run.``: of the results, they change the
rounding at most. Contents of data, tokenizer and initial weights are checked by digests, and work that compares scores
of several calls stores the kind of device. Flags that only say where work is done (``Flag.places``) are not kept.
"""
START_SETTING = "training.start_from"
"""Suffix of the setting that names the folder of the initial weights, whose contents are checked, not its path."""


def may_change(name: str) -> bool:
    """Whether resumed work may have another value of this setting."""
    return name.removeprefix("run.") in MAY_CHANGE


@dataclass(frozen=True)
class Resumable:
    """A kind of work: the file that identifies its folder, and the messages about folders that it cannot use."""

    file: str
    foreign: str = "exists and is not empty; choose another folder"
    """Message for a folder with other contents."""
    again: str = f"already contains this work; add {named('resume')} to continue it, or choose another folder"
    """Message for work that was begun, if it should not be resumed."""
    other: str = "holds work with other settings ({names}); choose another"
    """Message for work that was begun with other settings."""
    earlier: Sequence[str] = ()
    """Files that are written before ``file``, so that they alone remain of work that was killed at its start."""

    @classmethod
    def named(cls, noun: str, file: str, *, earlier: Sequence[str] = ()) -> Resumable:
        """A kind of work with its own name in messages."""
        return cls(
            file,
            earlier=earlier,
            foreign=f"exists and holds no {noun} of antiphase; choose another folder",
            again=f"already contains a {noun}; add {named('resume')} to continue it, or choose another folder",
            other=f"holds a {noun} with other settings ({{names}}); choose another folder",
        )

    def begun(self, output: Path, *, resume: bool) -> bool:
        """Whether the folder holds such work to continue; False if it is free. Writes nothing.

        Raises:
            InputError: the folder holds something else, or such work without ``resume``.
        """
        if not (output / self.file).is_file():
            if not is_free(output, but=self.earlier):
                raise refused(output, *f" {self.foreign}".split("; ", 1))
            return False
        if not resume:
            raise refused(output, *f" {self.again}".split("; ", 1))
        return True

    @contextmanager
    def held(self, output: Path, *, resume: bool) -> Iterator[None]:
        """Lock the folder if it can be used; a folder with other contents gets no lock file.

        Raises:
            InputError: as for ``begun``, or another process uses it.
        """
        self.begun(output, resume=resume)
        with only_one(output):
            self.begun(output, resume=resume)  # check again, because another process may have worked here meanwhile
            yield

    def check_same(self, output: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """
        Args:
            before, now: settings by name, at the beginning of the work and now.

        Raises:
            InputError: other settings differ; the message names them.
        """
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name) and not may_change(name)]
        # another command's flag that was not given says nothing
        changed = [name for name in changed if name in before.keys() & now.keys() or before.get(name) or now.get(name)]
        moved = {name for name in changed if name.endswith(START_SETTING) and before.get(name) and now.get(name)}
        if names := ", ".join(name for name in changed if name not in moved):
            raise refused(output, *f" {self.other.format(names=names)}".split("; ", 1))


class Work:
    """The request of a command and the digests of its inputs, in a JSON file of its folder."""

    KIND = Resumable(REQUEST)

    def __init__(self, output: Path, request: Mapping[str, Any]) -> None:
        self.output, self.path, self.request = output, output / self.KIND.file, finite(request)

    def check(self, *, resume: bool) -> None:
        """
        Raises:
            InputError: the folder holds something else, or ``resume`` is missing.
        """
        if self.KIND.begun(self.output, resume=resume):
            self.KIND.check_same(self.output, self._kept()["request"], self.request)

    def begin(self, contents: Mapping[str, Any], changed: Mapping[str, str]) -> None:
        """Store the digests of the inputs, or check that they have not changed.

        Args:
            contents: digests by name.
            changed: the message for each one that has changed.

        Raises:
            InputError: an input has changed since the work began.
        """
        if not self.path.is_file():
            tree = {"request": self.request, **contents}
            write_atomically(self.path, (json.dumps(tree, indent=1) + "\n").encode())
        before = self._kept()
        for name, content in contents.items():
            if before.get(name) != content:
                raise refused(self.output, f"{changed[name]} since this work began")

    def _kept(self) -> dict[str, Any]:
        """
        Raises:
            InputError: the file was changed and cannot be read.
        """
        tree = read_json(self.path, "output", BROUGHT_BACK)
        if not isinstance(tree.get("request"), dict):
            raise refused(self.path, "the file does not say what was asked for", BROUGHT_BACK)
        return tree


@contextmanager
def work_in(output: Path, request: Mapping[str, Any], *, resume: bool) -> Iterator[Work]:
    """Lock the folder of a request (its settings by name): a new one, or one with the same work.

    Raises:
        InputError: the folder holds something else or is in use.
    """
    work = Work(output, request)
    work.check(resume=resume)  # do not create a lock file in an unrelated folder
    with only_one(output):
        work.check(resume=resume)
        yield work
