"""The operator alone: it equals the difference of two softmax attentions, in which their common part cancels."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from antiphase import differential_attention

generator = torch.Generator().manual_seed(0)
batch, heads, length, width = 1, 4, 100, 32
query = torch.randn(batch, 2 * heads, length, width, generator=generator)  # maps 2i and 2i+1 belong to head i
key = torch.randn(batch, 2 * heads, length, width, generator=generator)
value = torch.randn(batch, heads, length, 2 * width, generator=generator)

out = differential_attention(query, key, value, 0.8, is_causal=True)
first = scaled_dot_product_attention(query[:, ::2], key[:, ::2], value, is_causal=True)
second = scaled_dot_product_attention(query[:, 1::2], key[:, 1::2], value, is_causal=True)
torch.testing.assert_close(out, first - 0.8 * second, rtol=1e-4, atol=1e-5)

_, weights = differential_attention(query, key, value, 0.8, is_causal=True, return_weights=True)
print(f"output {tuple(out.shape)}; each row of the signed weights sums to 1 - λ = {weights.sum(-1).mean():.3f}")
