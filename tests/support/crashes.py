"""A process that ends while it writes a checkpoint, just before a chosen call that changes the disk."""

import os
import shutil
from pathlib import Path

from antiphase.lab.training import checkpoint


class Crash(BaseException):
    """A process that ends here."""


HOMES = {"mkdir": Path, "save_file": checkpoint, "write_bytes": Path, "fsync": os, "rename": Path,
         "rmtree": shutil}  # fmt: skip
MOMENTS = ["mkdir", "save_file 1", "save_file 2", "write_bytes", "fsync 1", "fsync 4", "rename", "fsync 5",
           "rmtree", "done"]  # fmt: skip


def crash_at(moment, patch):
    """Let the process end just before a call that changes the disk."""
    name, _, count = moment.partition(" ")
    if name not in HOMES:
        return
    real, calls = getattr(HOMES[name], name), []

    def call(*arguments, **options):
        if name == "rmtree" and not arguments[0].name.startswith("step-"):
            return real(*arguments, **options)  # what an earlier crash has left
        calls.append(1)
        if len(calls) == int(count or 1):
            raise Crash
        return real(*arguments, **options)

    patch.setattr(HOMES[name], name, call)
