"""SwiGLU, the gated MLP of the decoder's blocks."""

from __future__ import annotations

from torch import Tensor, nn

from antiphase.layers.marks import mark_residual_output


class SwiGLU(nn.Module):
    """(swish(X Wg) ⊙ X W1) W2 (Shazeer, 2002.05202, section 2).

    Args:
        hidden_size: width of the input and the output.
        intermediate_size: width of the hidden layer.
    """

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        mark_residual_output(self.down_proj)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(hidden_states)) * self.up_proj(hidden_states))
