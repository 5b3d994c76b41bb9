"""What a model makes of a few tokens: whether padding, a cache, generation and later tokens change what it computes.

A model that a question is asked of answers it once. One that padding, a cache or generation change is still measured,
in a slower way; one that later tokens change is refused. Asked of its own attention, whatever a block changes in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache, GenerationConfig, PreTrainedModel
from transformers.utils import logging

from antiphase.attention.caches import cache_name
from antiphase.attention.hooks import unchanged
from antiphase.base.modes import evaluation_mode
from antiphase.lab.scoring.lengths import context_length
from antiphase.lab.scoring.padding import padded, padding

TOKENS = 32
LONG = re.compile(r"window|attention_chunk|index_topk|index_block|block_size")
"""Names of fields of a configuration or module that say how far a token sees, or how many it chooses."""
LOWERED = 8
"""What such a field is for a second reading if ``TOKENS`` do not reach it."""
SHORT = 3
"""Tokens of a short text, or of a short part of one."""
FAULTS = (TypeError, ValueError, RuntimeError, AttributeError, AssertionError, LookupError)
"""Errors by which models refuse a call that they do not serve."""

logger = logging.get_logger(__name__)
_answers: WeakKeyDictionary[PreTrainedModel, dict[str, bool]] = WeakKeyDictionary()


def takes_padding(model: PreTrainedModel) -> bool:
    """Whether a text that is padded on the left gets the logits that it gets alone.

    No: positions that are counted from the first token, padding included (BART, RoBERTa, RoFormer as decoders), and
    attention to a choice of the tokens.
    """

    def ask(ids: Tensor) -> tuple[Tensor, Tensor]:
        whole: list[int] = ids[0].tolist()
        texts = [whole, whole[len(whole) // 2 :], whole[-SHORT:]]
        rows, mask = padded(texts, ids.device)
        logits = model(input_ids=rows, use_cache=False, **padding(model, mask)).logits
        return _real(logits, texts), _alone(model, texts)

    otherwise = "counts padding as text, so texts of unequal lengths are read one length at a time"
    return _attends_to_all(model) and _answer(model, otherwise, ask)


def continues(model: PreTrainedModel) -> bool:
    """Whether texts that are read in parts, and change places in between, get the logits of texts read at once.

    One of them is padded if a batch may be (GIT takes padding, but not in a cache). No: also attention to a choice of
    the tokens.
    """

    def ask(ids: Tensor) -> tuple[Tensor, Tensor]:
        texts = _pair(model, ids)
        rows, mask = padded(texts, ids.device)
        order = torch.tensor([1, 0], device=ids.device)
        cache, found = DynamicCache(config=model.config), list[Tensor]()
        ends = sorted({min(SHORT, ids.shape[1] - 1), ids.shape[1] // 2, ids.shape[1]})
        for start, end in pairwise([0, *ends]):
            further = padding(model, mask[:, :end], before=start)
            logits = model(input_ids=rows[:, start:end], use_cache=True, **{cache_name(model): cache}, **further).logits
            found = [*[part[order] for part in found], logits[order]]
            cache.batch_select_indices(order)
            rows, mask, texts = rows[order], mask[order], texts[::-1]
        return _real(torch.cat(found, dim=1), texts), _alone(model, texts)

    otherwise = "computes something else from a cache, so texts are read whole"
    return _attends_to_all(model) and _answer(model, otherwise, ask)


def generates(model: PreTrainedModel) -> bool:
    """Whether every step of greedy generation has the logits of the whole text.

    Padding and a choice of the tokens are as for ``continues``.
    """

    def ask(ids: Tensor) -> tuple[Tensor, Tensor]:
        prompts = _pair(model, ids[:, : (ids.shape[1] + 1) // 2])
        rows, mask = padded(prompts, ids.device)
        steps = GenerationConfig(
            do_sample=False, max_new_tokens=ids.shape[1] - rows.shape[1], pad_token_id=0, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        own, model.generation_config = model.generation_config, steps
        try:
            output = model.generate(input_ids=rows, attention_mask=mask)
        finally:
            model.generation_config = own
        found = torch.stack(output.logits, dim=1)  # (2, steps, vocabulary)
        texts = [text[-len(prompt) - found.shape[1] : -1] for prompt, text in
                 zip(prompts, output.sequences.tolist(), strict=True)]  # fmt: skip
        alone = [_alone(model, [text])[-found.shape[1] :] for text in texts]
        return found, torch.stack(alone)

    otherwise = "generates something else with a cache, so each token is generated from the whole text"
    return _attends_to_all(model) and _answer(model, otherwise, ask)


def check_causal(model: PreTrainedModel, measured: str) -> None:
    """Check that a model may be measured by what it predicts.

    Args:
        measured: what would be measured, in the plural.

    Raises:
        ValueError: the model sees the tokens that it should predict.
    """
    if not is_causal(model):
        raise ValueError(
            f"{measured} of models of type {model.config.model_type} mean nothing, because their logits depend on the "
            "tokens that follow; choose a causal language model"
        )


@torch.no_grad()
def is_causal(model: PreTrainedModel) -> bool:
    """Whether a token's logits depend on no later token; otherwise a language-modelling loss means nothing."""
    known = _answers.setdefault(model, {})
    if (asked := "is causal") not in known:
        ids = _tokens(model)[:, : SHORT + 1]
        with _plain(model):
            both = _whole(model, torch.cat([ids, torch.cat([ids[:, :-1], ids[:, :1]], dim=1)]))[:, :-1].float()
        first, second = both[:, both.isfinite().all(0)]
        rounding = max(1e-4, 8 * torch.finfo(model.dtype).eps)  # rows of a batch may use different kernels
        known[asked] = len(first) == 0 or not bool(((first - second).abs() > rounding * first.abs().max()).any())
    return known[asked]


class _Choices(TorchFunctionMode):
    """Notes among how many values the largest are chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = set[int]()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **kwargs or {})
        if func in (torch.topk, Tensor.topk):
            given = dict(zip(("input", "k", "dim"), args, strict=False)) | (kwargs or {})
            self.sizes.add(given["input"].shape[given.get("dim", -1)])
        return found


@torch.no_grad()
def _attends_to_all(model: PreTrainedModel) -> bool:
    """Whether no layer chooses the tokens that score highest, to attend to these only (DeepSeek V3.2, Doge).

    Which of two that score alike is chosen, such as equal tokens, depends on how many there are, padding and later
    tokens included, so that a text has its logits only if it is read as it is. Choices of experts, which are as many
    for every text, do not count.
    """
    otherwise = "attends to a choice of the tokens, so texts are read whole and one length at a time"
    known = _answers.setdefault(model, {})
    if otherwise not in known:
        ids = _tokens(model)
        sizes = [_choices(model, ids[:, :length]) for length in (ids.shape[1], ids.shape[1] // 2)]
        known[otherwise] = None not in sizes and sizes[0] == sizes[1]
        if not known[otherwise]:
            logger.warning_once(f"{type(model).__name__} {otherwise}")
    return known[otherwise]


def _choices(model: PreTrainedModel, ids: Tensor) -> set[int] | None:
    """Among how many values a model chooses the largest as it reads, also if ``_lowered``; None: then it cannot."""
    with _plain(model), _Choices() as choices:
        _whole(model, ids)
        with _lowered(model) as has_long:
            if has_long:
                try:
                    _whole(model, ids)
                except torch.OutOfMemoryError:
                    raise
                except FAULTS:
                    return None
    return choices.sizes


def _pair(model: PreTrainedModel, ids: Tensor) -> list[list[int]]:
    """A text (1, N) and its reverse, which is shorter if the model takes padding."""
    whole: list[int] = ids[0].tolist()
    return [whole, whole[: -(SHORT - 1) if takes_padding(model) and len(whole) > SHORT else None][::-1]]


def _real(logits: Tensor, texts: list[list[int]]) -> Tensor:
    """Logits of the tokens of texts (..., vocabulary), one text after another, without those of padding before them."""
    return torch.cat([row[-len(text) :] for row, text in zip(logits, texts, strict=True)])


def _alone(model: PreTrainedModel, texts: list[list[int]]) -> Tensor:
    """Logits (..., vocabulary) of texts, one text after another, each read alone."""
    return torch.cat([_whole(model, torch.tensor([text], device=model.device))[0] for text in texts])


def _whole(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Logits (B, N, vocabulary) of texts that are read at once."""
    logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits


@torch.no_grad()
def _answer(model: PreTrainedModel, otherwise: str, ask: Callable[[Tensor], tuple[Tensor, Tensor]]) -> bool:
    """Whether two ways of reading some tokens (1, N) give equal logits, up to rounding.

    Args:
        otherwise: what is said once of a model whose logits differ, or which refuses one of the ways.
        ask: returns the logits (..., vocabulary) of both.
    """
    known = _answers.setdefault(model, {})
    if otherwise in known:
        return known[otherwise]
    with _plain(model):
        _whole(model, _tokens(model))  # a model that cannot read at all says so itself
        is_equal, is_telling = _compared(model, ask)
        with _lowered(model) as has_long:
            if is_equal and has_long:
                is_equal, is_telling = _compared(model, ask)
    if is_telling:  # a model whose logits are all equal may learn
        known[otherwise] = is_equal
    if not is_equal:
        logger.warning_once(f"{type(model).__name__} {otherwise}")
    return is_equal


def _compared(model: PreTrainedModel, ask: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[bool, bool]:
    """Whether two ways of reading give equal logits, and whether that says anything of the model."""
    try:
        one, other = (logits.float().log_softmax(-1) for logits in ask(_tokens(model)))
    except torch.OutOfMemoryError:
        raise
    except FAULTS:
        return False, True
    if bool(other.isnan().any()):
        return True, False  # whoever reads such logits refuses them
    one = one if one.shape == other.shape else torch.full_like(other, torch.nan)
    spread = float((other - other.mean(-1, keepdim=True)).square().mean())
    error = float((one - other).square().mean(-1).amax())
    is_equal = error <= max(1e-3, 16 * torch.finfo(model.dtype).eps) ** 2 * spread
    return is_equal, spread > 1e-10 * float(other.square().mean())


@contextmanager
def _lowered(model: PreTrainedModel) -> Iterator[bool]:
    """Lower each field of ``LONG`` that ``TOKENS`` do not reach, within the block; whether there is any.

    A model with a window of thousands, or that chooses from as many, is then asked as one with a short window is.
    """
    owners: dict[int, Any] = {}
    for module in model.modules():
        for owner in (module, getattr(module, "config", None)):
            if owner is not None:
                owners[id(owner)] = owner
    text = model.config.get_text_config()
    owners[id(text)] = text
    found = [
        (owner, name, value)
        for owner in owners.values()
        for name, value in vars(owner).items()
        if type(value) is int and value >= TOKENS and LONG.search(name)
    ]
    try:
        for owner, name, _ in found:
            setattr(owner, name, LOWERED)
        yield bool(found)
    finally:
        for owner, name, value in found:
            setattr(owner, name, value)


@contextmanager
def _plain(model: PreTrainedModel) -> Iterator[None]:
    """Turn dropout off within the block, and leave attention as the model computes it."""
    with evaluation_mode(model), unchanged(model):
        yield


def _tokens(model: PreTrainedModel) -> Tensor:
    """``TOKENS`` tokens (1, N) from all over the vocabulary, none of them padding; fewer if the model reads fewer."""
    config = model.config.get_text_config()
    count = min(TOKENS, context_length(model) or TOKENS)
    step = max(1, config.vocab_size // (TOKENS + 3))
    ids = [(place * step + 1) % config.vocab_size for place in range(count)]
    unused = getattr(config, "pad_token_id", None)
    return torch.tensor([[0 if index == unused else index for index in ids]], device=model.device)
