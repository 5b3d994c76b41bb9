"""Random generators keyed by words, so that every draw is a pure function of its purpose."""

from __future__ import annotations

import hashlib

import torch


def keyed_generator(*key: object) -> torch.Generator:
    """A CPU generator that depends only on the words of ``key``, for example ``(seed, "order", epoch)``."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
