"""Calibration as an eager procedure that holds whole maps, row by row, as the specification of the fast one."""

import math

import torch

from antiphase.calibration.reference import redistribute
from antiphase.layers.functions import has_two_keys, is_differential, join_halves
from antiphase.layers.masks import boolean_mask


class Eager:
    """The rule on whole maps; what a prompt decided is kept by layer."""

    def __init__(self, plan, real):
        self.plan, self.real = plan, real  # (B, all tokens)
        self.past, self.sinks, self.mass, self.query = 0, {}, {}, None

    def wrap(self, function):
        def attend(module, query, key, value, attention_mask, **kwargs):
            maps = query.shape[1]
            values, keys = value, key
            inside = getattr(module, "differential", None)
            has_halves = has_two_keys(module) or inside is not None
            if is_differential(module) or inside is not None:
                group = torch.arange(maps) // (maps // (value.shape[1] // (2 if has_halves else 1)))
                values = (join_halves(value) if has_halves else value)[:, group]
                keys = key[:, 2 * group + torch.arange(maps) % 2] if has_halves else key[:, group]
            else:
                keys, values = (t.repeat_interleave(maps // t.shape[1], dim=1) for t in (key, value))
            scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
            weights = torch.zeros(*query.shape[:3], key.shape[2], dtype=query.dtype)
            again, self.query = query is self.query, query
            for b in range(len(query)):
                for m in range(maps):
                    weights[b, m] = self.rows(module, query, keys, attention_mask, kwargs, scale, b, m, again)
            out = (weights @ values).transpose(1, 2)
            lam = kwargs.get("lam") if inside is None else inside.lam()
            if lam is not None:
                lam = lam.reshape((1,) * (3 - lam.dim()) + tuple(lam.shape))
                out = out[:, :, ::2] - lam.transpose(1, 2).unsqueeze(-1) * out[:, :, 1::2]
            if inside is not None:  # the two halves of a head apart
                out = inside.finish(out).unflatten(3, (2, -1)).flatten(2, 3)
            return out, None

        return attend

    def rows(self, module, query, keys, mask, kwargs, scale, b, m, again):
        """Calibrated weights (N, M) of one map."""
        length, count = query.shape[2], keys.shape[2]
        position = torch.arange(length) + count - length
        visible = torch.ones(length, count, dtype=torch.bool)
        if getattr(module, "is_causal", True):
            visible = position[:, None] >= torch.arange(count)
            if kwargs.get("sliding_window"):
                visible &= position[:, None] - torch.arange(count) < kwargs["sliding_window"]
        if mask is not None:
            visible = visible & boolean_mask(mask)[b if len(mask) > 1 else 0, 0].expand(length, -1)
        scores = (query[b, m] @ keys[b, m].T * scale).masked_fill(~visible, -math.inf)
        weights = torch.softmax(scores, -1).nan_to_num(0.0)
        if m not in self.plan.heads.get(module.layer_idx, ()):
            return weights
        total = self.past + length
        real = self.real[b, :total][total - count :]
        first = int(self.real[b].nonzero()[0]) - (total - count)
        name = module.layer_idx, b, m
        if self.plan.mode == "running":
            if not again:
                self.before = {**getattr(self, "before", {}), name: self.mass.get(name, torch.zeros(0))}
            sums = torch.zeros(total, dtype=weights.dtype)
            sums[: len(self.before[name])] = self.before[name]
            order = self.real[b].long().cumsum(0)
            result = weights.clone()
            for i in range(length):
                if not real[position[i]]:
                    continue
                sums[total - count :] += weights[i]
                seen = int(visible[i].sum())
                queries = order[position[i] + total - count] - order[total - count : total] + 1
                is_heavy = sums[total - count :] / queries.clamp(min=1) > self.plan.alpha / seen
                sinks = visible[i] & (queries >= seen / self.plan.alpha) & is_heavy
                if first >= 0:
                    sinks[first] = False
                result[i] = redistribute(weights[i], sinks, beta=self.plan.beta)
            self.mass[name] = sums
            return result
        if self.plan.mode == "prompt" and self.past:
            sinks = torch.zeros(total, dtype=torch.bool)
            sinks[: len(self.sinks[name])] = self.sinks[name]
            sinks = sinks[total - count :]
        else:
            queries = real[position]
            received = weights[queries].sum(0) / visible[queries].sum(0)
            sinks = received > self.plan.alpha / int(visible[queries].sum(1).max())
            if first >= 0:
                sinks[first] = False
            self.sinks[name] = sinks
        return redistribute(weights, sinks.unsqueeze(0), beta=self.plan.beta)
