"""The MLP of the decoder's blocks: SwiGLU, or with other activations, without a gate, and with biases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from antiphase.layers.marks import mark_residual_output
from antiphase.ops.shapes import statistics_dtype

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": nn.functional.silu,
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast"), partial(nn.functional.gelu, approximate="tanh")),
}
"""Activations by the names that transformers gives them; three are one function, written in different ways."""


class PolyNorm(nn.Module):
    """w₀ N(x³) + w₁ N(x²) + w₂ N(x) + b, N(y) = y / √(mean of y² over the channels + ε) (2411.03884, section 3).

    Every output depends on all channels of the row, so channels cannot be divided.
    """

    eps = 1e-6

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(3)), nn.Parameter(torch.empty(1))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the weights to 1/3 and the bias to 0, as published."""
        self.weight.fill_(1 / 3)
        self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """(…, channels) in its own dtype, computed at least in fp32, where cubes do not overflow."""
        wide = x.to(statistics_dtype(x.dtype))
        square = wide * wide
        powers = (nn.functional.rms_norm(one, x.shape[-1:], eps=self.eps) for one in (square * wide, square, wide))
        cube, square, plain = powers
        weight = self.weight.to(wide.dtype)
        out = weight[0] * cube + weight[1] * square + weight[2] * plain + self.bias.to(wide.dtype)
        return out.to(x.dtype)


LEARNED: Mapping[str, Callable[[], nn.Module]] = {"poly_norm": PolyNorm}
"""Activations with parameters."""
KNOWN = (*ACTIVATIONS, *LEARNED)


class MLP(nn.Module):
    """(act(X Wg) ⊙ X W1) W2, with SiLU that is SwiGLU (Shazeer, 2002.05202, section 2); act(X W1) W2 without a gate.

    Args:
        hidden_size: width of the input and the output.
        intermediate_size: width of the hidden layer.
        activation: name of act, one of ``KNOWN``.
        gated: whether there is a gate.
        bias: whether all products have biases.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str = "silu",
        gated: bool = True,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.activation, self.is_gated = activation, gated
        if activation in LEARNED:
            self.act_fn = LEARNED[activation]()
        if gated:
            self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)
        mark_residual_output(self.down_proj)

    def forward(self, hidden_states: Tensor) -> Tensor:
        act = self.act_fn if self.activation in LEARNED else ACTIVATIONS[self.activation]
        if self.is_gated:
            return self.down_proj(act(self.gate_proj(hidden_states)) * self.up_proj(hidden_states))
        return self.down_proj(act(self.up_proj(hidden_states)))
