"""Norms of residual streams, heads, queries and keys: RMSNorm, also with zero-centered weights, and LayerNorm."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from antiphase.layers.marks import mark_first_weight
from antiphase.ops.layer import rms_norm
from antiphase.ops.shapes import autocast_dtype, statistics_dtype


class RMSNorm(nn.RMSNorm):
    """PyTorch's RMSNorm times a constant factor, on the native kernels if they are available.

    Args:
        width: size of the last dimension.
        eps: added to the mean of squares.
        factor: 1 - λinit in the norm of a V1 layer's heads (2410.05258, equation 3).
        is_rounded: under autocast, return autocast's dtype, for a projection that would round the result anyway.
    """

    eps: float
    is_rounded = False  # in modules that were saved whole by earlier versions

    def __init__(self, width: int, eps: float, factor: float = 1.0, *, is_rounded: bool = False) -> None:
        super().__init__(width, eps=eps)
        self.factor, self.is_rounded = factor, is_rounded

    def forward(self, x: Tensor) -> Tensor:
        """(…, width) in the weight's dtype, also under autocast unless ``is_rounded``."""
        dtype = autocast_dtype(x, self.weight) if self.is_rounded else None
        return rms_norm(x, self.weight, self.eps, self.factor, dtype)

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.factor == 1.0 else f", factor={self.factor:g}")


class ZeroCenteredRMSNorm(RMSNorm):
    """RMSNorm whose weight is stored less 1, as in Gemma: rounding 1 + weight to bf16 would change the function."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__(width, eps)
        mark_first_weight(self, 0.0)
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(…, width) in the weight's dtype, computed at least in fp32, also under autocast."""
        weight = 1.0 + self.weight.to(statistics_dtype(self.weight.dtype))
        return rms_norm(x, weight, self.eps, self.factor).to(self.weight.dtype)


def _layer_norm(width: int, eps: float) -> nn.Module:
    return nn.LayerNorm(width, eps=eps)


NORMS: Mapping[str, Callable[[int, float], nn.Module]] = {
    "rms_norm": RMSNorm,
    "zero_centered_rms_norm": ZeroCenteredRMSNorm,
    "layer_norm": _layer_norm,
}
"""Norms of the residual stream by name, made from width and ε; ``layer_norm`` has biases (Ba et al., 1607.06450)."""
