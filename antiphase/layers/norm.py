"""RMSNorm, for residual streams and heads."""

from __future__ import annotations

from torch import Tensor, nn

from antiphase.ops.layer import rms_norm


class RMSNorm(nn.RMSNorm):
    """PyTorch's RMSNorm times a constant factor, on the native kernels if they are available.

    Args:
        width: size of the last dimension.
        eps: added to the mean of squares.
        factor: 1 - λinit in the norm of a V1 layer's heads (2410.05258, equation 3).
    """

    eps: float

    def __init__(self, width: int, eps: float, factor: float = 1.0) -> None:
        super().__init__(width, eps=eps)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """(…, width) in the weight's dtype, also under autocast."""
        return rms_norm(x, self.weight, self.eps, self.factor)

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.factor == 1.0 else f", factor={self.factor:g}")
