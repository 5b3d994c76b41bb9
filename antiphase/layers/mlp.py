"""The MLP of the decoder's blocks: SwiGLU, or with other activations, without a gate, and with biases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor, nn

from antiphase.layers.marks import mark_residual_output

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": nn.functional.silu,
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast"), partial(nn.functional.gelu, approximate="tanh")),
}
"""Activations by the names that transformers gives them; three are one function, written in different ways."""


class MLP(nn.Module):
    """(act(X Wg) ⊙ X W1) W2, with SiLU that is SwiGLU (Shazeer, 2002.05202, section 2); act(X W1) W2 without a gate.

    Args:
        hidden_size: width of the input and the output.
        intermediate_size: width of the hidden layer.
        activation: name of act, one of ``ACTIVATIONS``.
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
        if gated:
            self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)
        mark_residual_output(self.down_proj)

    def forward(self, hidden_states: Tensor) -> Tensor:
        act = ACTIVATIONS[self.activation]
        if self.is_gated:
            return self.down_proj(act(self.gate_proj(hidden_states)) * self.up_proj(hidden_states))
        return self.down_proj(act(self.up_proj(hidden_states)))
