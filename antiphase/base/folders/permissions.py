"""Permissions of weights: those of every other file that a run writes."""

from __future__ import annotations

from pathlib import Path


def share_weights(folder: Path) -> None:
    """Let everyone read weights who may read the folder's other files.

    safetensors creates files that their owner alone can read, whatever the umask is (its issue 782), so that a model
    trained by one user could not be loaded by another.
    """
    mode = folder.stat().st_mode & 0o666  # a new folder has all bits but the umask's
    for path in folder.glob("*.safetensors"):
        path.chmod(mode)
