"""Modes of a module, restored afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Run the block without dropout; afterwards every part is in its own mode again, even after an error.

    Parts return by their own ``train``, which may do more than set a flag (merge an adapter, choose kernels).
    """
    before = [(one, one.training) for one in module.modules()]
    module.eval()
    try:
        yield
    finally:
        try:
            for one, was_training in before:
                if one.training != was_training:
                    one.train(was_training)
        finally:
            for one, was_training in before:  # a part of two others may have gone with the second
                one.training = was_training
