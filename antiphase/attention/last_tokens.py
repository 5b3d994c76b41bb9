"""Reruns the last tokens of a text with some keys hidden, or separates the contributions of the parts of the text.

One pass over the whole text stores the keys and values of every layer; each further pass runs only a few tokens, in
several copies at once that differ in what is hidden.
Legend: B sequences, P last tokens, M keys, S spans of keys, K copies.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antiphase.attention.answers import AnswerScores, answer_scores
from antiphase.attention.calls import AttentionCall, Pairing
from antiphase.attention.hooks import observed, transformed
from antiphase.attention.own_maps import is_close
from antiphase.attention.rows import LayerRows, rows_at, rows_of_heads
from antiphase.attention.stored_keys import NUMBERS_AT_ONCE, Stored, among_copies, apart, attend, output_of


@dataclass(frozen=True)
class Contributions:
    """Contributions of spans of keys to one attention layer's output at one token, for B sequences, in fp64."""

    spans: Tensor
    """(B, S, hidden)."""
    whole: Tensor
    """(B, hidden): the layer's output without its biases."""
    first: Tensor | None = None
    """(B, S, hidden): the parts that come from the first maps of the heads; None where maps are not subtracted."""

    def by_map(self) -> dict[str, Contributions]:
        """``softmax``; or ``difference`` and its two parts ``first`` (A1 V) and ``second`` (-λ A2 V)."""
        if self.first is None:
            return {"softmax": self}
        second = self.spans - self.first
        return {"difference": self, "first": replace(self, spans=self.first), "second": replace(self, spans=second)}

    def shares(self) -> Tensor:
        """(B, S): ⟨span, whole⟩ / ⟨whole, whole⟩, the span's projection on the whole relative to the whole's length.

        Shares of spans that partition the text add up to 1. They are negative if a span opposes the rest (as in Mickus
        et al., 2206.03529; ALTI, 2203.04212, uses unsigned distances instead).
        """
        along = torch.einsum("bsc,bc->bs", self.spans, self.whole)
        return along / self.whole.square().sum(-1, keepdim=True).clamp(min=1e-300)

    def norms(self) -> Tensor:
        """(B, S): ‖span‖ / ‖whole‖, which add up to more than 1 if spans cancel."""
        size = self.whole.norm(dim=-1, keepdim=True)
        return self.spans.norm(dim=-1) / size.clamp(min=1e-300)


class LastTokens:
    """Reruns the tokens at ``positions`` of sequences, after the stored keys and values of all others."""

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, input_ids: Tensor, positions: Tensor) -> None:
        """Run the whole text once, and then the last tokens to check that they can be run alone.

        Args:
            input_ids: (B, N) without padding.
            positions: (B, P), 0-based; a position may be repeated.

        Raises:
            ValueError: the model's attention does not use transformers' interface, depends on more than queries, keys
                and values, or tokens cannot be run alone by position.
        """
        self.model, self.ids, self.positions = model, input_ids.to(model.device), positions.to(model.device)
        self.calls: list[Stored] = []
        self.rows: list[LayerRows] = []
        """Attention of the first of the last tokens in every layer, in order, on the CPU; see ``attention_rows``."""
        with observed(model, self._keep, once=True):
            model.base_model(input_ids=self.ids, use_cache=False)
        if "position_ids" not in inspect.signature(model.forward).parameters:
            raise ValueError(f"{type(model).__name__} takes no position_ids, so it cannot run a text's end alone")
        self._run(_Replay(self))

    @property
    def layers(self) -> int:
        """Number of attention layers in the model."""
        return self.calls[-1].index + 1

    @property
    def numbers(self) -> list[int]:
        """The model's number of each attention layer, in the order of calls; there may be other layers between them."""
        first = {call.index: call.number for call in reversed(self.calls)}
        return [first[index] for index in range(self.layers)]

    def log_probabilities(self, targets: Tensor) -> Tensor:
        """Log-probability in nats of the tokens that follow the last tokens, summed per sequence: (B,) on the CPU.

        Args:
            targets: token ids (B, P); negative ids are skipped.
        """
        return self.scores(targets).log_probability[0]

    def without(self, hidden: Tensor, targets: Tensor, layers: Sequence[int | None] = (None,)) -> Tensor:
        """``log_probabilities`` with keys hidden from the last tokens, in one layer after the other: (layers, B).

        Args:
            hidden, targets: as in ``scores``.
            layers: the only layer in which they are hidden, in the order of calls; None means all at once.
        """
        at = [None if layer is None else [layer] for layer in layers]
        return self.scores(targets, hidden, at).log_probability

    @torch.no_grad()
    def scores(
        self, targets: Tensor, hidden: Tensor | None = None, layers: Sequence[Collection[int] | None] = (None,)
    ) -> AnswerScores:
        """Scores of the tokens that follow the last tokens, if keys are hidden from these: (copies, B).

        This is attention knock-out (Geva et al., 2304.14767). The weight goes to the remaining keys, in differential
        heads for both maps.

        Args:
            targets: token ids (B, P); negative ids are skipped.
            hidden: (B, M) bool; None: nothing is hidden.
            layers: for each copy the layers in which they are hidden, in the order of calls; None means all.
        """
        batch, last = self.positions.shape
        maps = max(call.query.shape[1] for call in self.calls)
        numbers = batch * last * max(maps * self.ids.shape[1], self.model.config.get_text_config().vocab_size)
        at_once = max(1, NUMBERS_AT_ONCE // numbers)
        hidden = None if hidden is None else hidden.to(self.model.device)
        found = []
        for start in range(0, len(layers), at_once):
            replay = _Replay(self, hidden, layers[start : start + at_once])
            logits = self._run(replay).unflatten(0, (-1, replay.copies)).transpose(0, 1)  # (K, B, P, vocabulary)
            found.append(answer_scores(logits, targets.expand(replay.copies, -1, -1)))
        return AnswerScores(
            *(torch.cat([getattr(one, name) for one in found]) for name in ("log_probability", "log_odds", "is_right"))
        )

    @torch.no_grad()
    def contributions(self, spans: Tensor) -> list[Contributions]:
        """Contributions of spans of keys (B, S, M; bool) to each layer's output at the first of the last tokens.

        A head's output is the sum of its weights times the values, with signed weights in differential heads, whose two
        maps also have parts of their own. The rest
        of the layer (subtraction, gate, output projection) is linear in it, except for head norms. These are frozen:
        every part is divided by the root mean square of the actual output, so that the parts add up to it. Both
        value-weighted attention (2004.10102) and the frozen norm (2109.07152) are from Kobayashi et al.

        Raises:
            ValueError: a layer processes its heads' outputs in other ways, so that the parts do not add up.
        """
        split = _Split(self, spans.to(self.model.device))
        with ExitStack() as stack:
            for module in dict.fromkeys(call.module for call in self.calls):
                stack.enter_context(split.watching(module))
            self._run(split)
        if len(split.found) != self.layers:
            raise ValueError(f"{type(self.model).__name__} does not call its attention layers as modules")
        return split.found

    def _keep(self, call: AttentionCall, heads: Tensor, weights: Tensor | None) -> None:
        rows, chosen, visible = rows_at(self.positions, call)
        places = self.positions[:, :, None, None].expand(-1, -1, *heads.shape[2:])
        actual = heads.gather(1, places)  # (B, P, heads, dv)
        read = output_of(rows, call.values)
        if read.shape != actual.shape or not is_close(read, actual, output_of(rows, call.values, absolute=True)):
            raise ValueError(
                f"{type(call.module).__name__} of {type(self.model).__name__} does not compute softmax attention, or a "
                "difference of two maps, from its queries, keys and values, so contributions of tokens cannot be read"
            )
        index = 0 if not self.calls else self.calls[-1].index + (not call.is_second_half)
        window = call.declared_window
        self.calls.append(Stored(call.module, call.layer, index, chosen, call.key, call.value, visible, window))
        if not call.is_second_half:
            self.rows.append(rows_of_heads(call, rows.first()))

    def _run(self, replay: _Replay) -> Tensor:
        """The logits of all copies of the last tokens (B·K, P, vocabulary)."""
        ids, positions = (
            tensor.repeat_interleave(replay.copies, dim=0)
            for tensor in (self.ids.gather(1, self.positions), self.positions)
        )
        with transformed(self.model, replay):
            logits: Tensor = self.model(input_ids=ids, position_ids=positions, use_cache=False).logits
        return logits


class _Replay:
    """Attention of copies of the last tokens, with all other keys and values taken from those stored.

    A sequence's copies, one for each of ``layers``, are further queries and keys of it. A copy sees the stored keys
    except those of the last tokens, for which it has its own.
    """

    def __init__(
        self, tokens: LastTokens, hidden: Tensor | None = None, layers: Sequence[Collection[int] | None] = (None,)
    ) -> None:
        self.tokens, self.hidden, self.layers = tokens, hidden, layers
        self.calls = iter(tokens.calls)

    @property
    def copies(self) -> int:
        """Number of copies K of each sequence."""
        return len(self.layers)

    def __call__(self, call: AttentionCall) -> Tensor:
        whole, rows = self._whole_text(call)
        return apart(output_of(rows, whole.values), self.copies)

    def _whole_text(self, call: AttentionCall) -> tuple[AttentionCall, LayerRows]:
        """The call with all keys and values (M + K·P), and the rows of the last tokens (K·P)."""
        kept = next(self.calls)
        if self.hidden is None and not is_close(call.query, kept.query, kept.query):
            raise ValueError(
                f"{type(self.tokens.model).__name__} computes a text's last tokens differently alone than after the "
                "others, so they cannot be run again"
            )
        return attend(kept, call, self.copies, self._visible(kept))

    def _visible(self, kept: Stored) -> Tensor:
        """Which of all keys the copies see: (B, 1|maps, K·P, M + K·P)."""
        positions, keys = self.tokens.positions.to(kept.key.device), kept.key.shape[2]
        batch, last = positions.shape
        seen = positions.new_ones(batch, 1, 1, last, keys, dtype=torch.bool)  # (B, 1|maps, 1|K, P, M)
        if kept.visible is not None:
            seen = seen & kept.visible.unsqueeze(2)
        if self.hidden is not None:
            here = torch.tensor(
                [layers is None or kept.index in layers for layers in self.layers], device=positions.device
            )
            seen = seen & ~(self.hidden.to(here.device)[:, None, None, None] & here[:, None, None])
        seen = seen.expand(-1, -1, self.copies, -1, -1)
        is_first = torch.ones_like(positions, dtype=torch.bool)  # a repeated position is one key
        for place in range(1, last):
            is_first[:, place] = (positions[:, :place] != positions[:, place, None]).all(1)
        own = (
            seen.gather(-1, positions[:, None, None, None].expand(*seen.shape[:-1], -1)) & is_first[:, None, None, None]
        )
        stored = positions.new_ones(batch, keys, dtype=torch.bool).scatter(1, positions, False)
        seen = seen & stored[:, None, None, None]
        return torch.cat([seen, among_copies(own)], dim=-1).flatten(2, 3)


class _Split(_Replay):
    """Runs every attention layer again for each part of its heads' outputs alone."""

    def __init__(self, tokens: LastTokens, spans: Tensor) -> None:
        super().__init__(tokens)
        places = tokens.positions[:, None].expand(-1, spans.shape[1], -1)
        spans = torch.cat([spans, spans.gather(2, places)], dim=2)  # (B, S, M + P)
        rest = ~spans.any(1, keepdim=True)
        self.spans = torch.cat([spans, rest, torch.zeros_like(rest)], dim=1)  # (B, S + 2, M + P); the last is empty
        self.found: list[Contributions] = []
        self._whole: list[Tensor] = []  # parts (S + 2, B, P, heads, dv) of the calls of the current layer
        self._given: Iterator[Tensor] | None = None  # what its calls return in the rerun
        self._scales: dict[nn.Module, Tensor] = {}

    def __call__(self, call: AttentionCall) -> Tensor:
        if self._given is not None:
            return next(self._given)
        whole, rows = self._whole_text(call)
        spans, own = self.spans.to(rows.maps.device), rows.first()
        parts = torch.stack([output_of(own, whole.values, only=span) for span in spans.unbind(1)])
        if call.kind.pairing is not Pairing.NONE:  # then those of the first maps alone
            parts = torch.cat([parts, self._of_first_maps(call, own, parts, whole.values)])
        self._whole.append(parts.expand(-1, -1, call.query.shape[2], -1, -1))  # of the first token; others are unused
        return output_of(rows, whole.values)

    def _of_first_maps(self, call: AttentionCall, rows: LayerRows, parts: Tensor, values: Tensor) -> Tensor:
        """The parts (S, B, 1, heads, dv) of the spans that come from the first map of each head."""
        spans = self.spans[:, :-2].to(rows.maps.device).unbind(1)
        if call.kind.subtracts:
            first = replace(rows, maps=rows.maps[:, :, :1], lam=None)
            return torch.stack([output_of(first, values, only=span) for span in spans])
        own, others = parts[: len(spans)].chunk(2, dim=3)  # maps i and i + H, which the layer subtracts
        return torch.cat([own, torch.zeros_like(others)], dim=3)

    @contextmanager
    def watching(self, module: nn.Module) -> Iterator[None]:
        """Observe an attention layer, and freeze its norms while it runs again."""
        handles = [module.register_forward_hook(self._run_parts, with_kwargs=True)]
        handles += [
            part.register_forward_hook(self._freeze) for part in module.modules() if isinstance(part, nn.RMSNorm)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _run_parts(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        outputs = []
        for index in range(len(self._whole[0])):
            self._given = iter([parts[index] for parts in self._whole])
            outputs.append(_first_token(module.forward(*args, **kwargs)))
        self._given, self._whole = None, []
        every = self.spans.shape[1]
        *parts, nothing = outputs[:every]  # a bias is in each output
        whole = _first_token(output) - nothing
        spans = torch.stack(parts, dim=1) - nothing.unsqueeze(1)  # (B, S + 1, hidden)
        if not is_close(spans.sum(1), whole, spans.abs().sum(1)):
            raise ValueError(
                f"{type(module).__name__} of {type(self.tokens.model).__name__} processes its heads' outputs "
                "nonlinearly, so that parts do not add up and contributions of tokens cannot be read"
            )
        first = None
        if len(outputs) > every:
            first = (torch.stack(outputs[every:], dim=1) - nothing.unsqueeze(1)).double().cpu()
        self.found.append(Contributions(spans[:, :-1].double().cpu(), whole.double().cpu(), first))

    def _freeze(self, norm: nn.RMSNorm, args: tuple[Tensor], output: Tensor) -> Tensor | None:
        """Apply a norm with the scale of the actual output; ``eps`` as in ``torch.nn.RMSNorm``, ``factor`` ours."""
        (given,) = args
        if self._given is None:
            eps = torch.finfo(given.dtype).eps if norm.eps is None else norm.eps
            self._scales[norm] = torch.rsqrt(given.square().mean(-1, keepdim=True) + eps)
            return None
        scaled = given * self._scales[norm] * getattr(norm, "factor", 1.0)
        return scaled * norm.weight if norm.elementwise_affine else scaled


def _first_token(output: Any) -> Tensor:
    """(B, hidden) from a layer's return value."""
    whole: Tensor = output[0] if isinstance(output, tuple) else output
    return whole[:, 0]
