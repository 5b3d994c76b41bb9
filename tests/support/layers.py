"""A layer of attention by its formula: query by query, from weights and fields alone."""

import math

import torch

from antiphase.models.attention import attention_layer


def rotate(x, position):
    """Rotary embedding of one vector (d,): channels j and j + d/2 turned by position·10000^(-2j/d)."""
    half = x.shape[-1] // 2
    turned = torch.complex(x[:half], x[half:]) * torch.polar(
        torch.ones(half, dtype=x.dtype), position * 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    )
    return torch.cat([turned.real, turned.imag])


def rotary(width, length):
    """The pair of cos and sin, (1, N, d) each, in float64."""
    frequencies = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)[None]
    return angles.cos(), angles.sin()


def random_layer(config, index, implementation):
    config._attn_implementation = implementation
    layer = attention_layer(config, index).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.4)
    return layer


def formula(layer, x):
    """What the layer of any kind and variant gives for x (N, hidden) in float64; V1 is section 2.1 of 2410.05258."""
    config, width, count = layer.config, layer.head_dim, len(x)
    state = dict(layer.named_parameters())
    maps, groups = config.num_attention_heads, config.num_key_value_heads
    asked = (x @ layer.q_proj.weight.T).view(count, -1, width)
    keys, values = ((x @ layer.get_submodule(name).weight.T).view(count, -1, width) for name in ("k_proj", "v_proj"))

    def weights(query, i, group, sink=None):
        scores = [rotate(query, i) @ rotate(keys[j, group], j) / math.sqrt(width) for j in range(i + 1)]
        row = torch.stack(scores)
        if config.attention_type == "softpick":
            return (row.exp() - 1).relu() / (row.exp() - 1).abs().sum()
        if config.attention_type == "cog":
            return row.sign() * row.abs().exp() / row.abs().exp().sum()
        row = row.exp()
        kept = 1 if config.attention_type == "softmax_one" else 0
        return row / (row.sum() + (kept if sink is None else sink.exp()))

    def plain(head, i):
        group = head // (maps // groups)
        sink = state["sinks"][head] if config.sink_logits else None
        out = weights(asked[i, head], i, group, sink) @ values[: i + 1, group]
        if config.attention_type == "exclusive":
            own = values[i, group]
            out = out - (out @ own) / (own @ own) * own
        return out

    def shared_noise(head):
        share = maps // 2 // (config.num_noise_heads or maps // 2)  # heads that subtract the same second map
        return (head // share) * (share + 1) + head % share, (head // share) * (share + 1) + share

    def v1(head, i):
        group = head // (maps // groups)
        first, second = shared_noise(head)
        lam = layer.lambda_init
        if config.second_map == "none":
            lam = 0.0
        elif config.lambda_form in (None, "exponential"):
            q1, k1, q2, k2 = (layer.get_parameter(f"lambda_{name}").double() for name in ("q1", "k1", "q2", "k2"))
            lam = (q1 @ k1).exp() - (q2 @ k2).exp() + layer.lambda_init
        elif config.lambda_form != "fixed":
            lam = lam + state["lambda_offset"][head if config.lambda_form == "head" else 0]
        sign = 1 if config.second_map == "added" else -1
        row = weights(asked[i, first], i, 2 * group) + sign * lam * weights(asked[i, second], i, 2 * group + 1)
        return row @ torch.cat([values[: i + 1, 2 * group], values[: i + 1, 2 * group + 1]], dim=-1)

    def v2(head, i):
        heads = maps // 2
        if config.lambda_form == "fixed":
            lam = 1.0
        else:
            lam = x[i] @ layer.lambda_proj.weight[head]
            lam = lam if config.lambda_form == "linear" else 1 / (1 + torch.exp(-lam))
        if config.attention_type == "differential_v2_across":
            return plain(head, i) - lam * plain(head + heads, i)
        group = head // (heads // groups)
        row = weights(asked[i, shared_noise(head)[0]], i, group)
        return (row - lam * weights(asked[i, shared_noise(head)[1]], i, group)) @ values[: i + 1, group]

    form, heads = {
        **dict.fromkeys(("softmax", "softmax_one", "softpick", "cog", "exclusive"), (plain, maps)),
        "differential": (v1, maps // 2), "differential_v2": (v2, maps // 2),
        "differential_v2_across": (v2, maps // 2),
    }[config.attention_type]  # fmt: skip
    rows = []
    for i in range(count):
        outputs = []
        for head in range(heads):
            out = form(head, i)
            if config.dex_heads is not None and head in config.dex_heads[layer.layer_idx]:
                out = out - state["dex_lambda"].double() * (out @ state["dex_weight"])
            if config.head_norm or (config.head_norm is None and config.attention_type == "differential"):
                out = out / torch.sqrt((out**2).mean() + config.head_norm_eps) * layer.head_norm.weight
            if config.attention_type == "differential" and config.head_scale is not False:
                out = (1 - layer.lambda_init) * out
            outputs.append(out)
        row = torch.cat(outputs)
        if config.output_gate:
            row = row / (1 + torch.exp(-(layer.output_gate.weight @ x[i])))
        rows.append(row)
    return torch.stack(rows) @ layer.o_proj.weight.T
