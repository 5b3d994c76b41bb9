"""What a model makes of a few tokens: whether padding, a cache and generation change what it computes.

A model that a question is asked of answers it once. One whose answer is no is still measured, in a slower way.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel
from transformers.utils import logging

from antiphase.interface import REPLACEMENT_PREFIX
from antiphase.scoring.padding import padded, padding

TOKENS = 32
"""Enough for the short windows that a model may have; the long ones are trusted."""
SHORT = 3
"""Tokens of a short text, or of a short part of one."""
FAULTS = (TypeError, ValueError, RuntimeError, AttributeError, AssertionError, LookupError)
"""Errors by which models refuse a call that they do not serve."""

logger = logging.get_logger(__name__)
_answers: WeakKeyDictionary[PreTrainedModel, dict[str, bool]] = WeakKeyDictionary()


def takes_padding(model: PreTrainedModel) -> bool:
    """Whether a text that is padded on the left gets the logits that it gets alone.

    No: positions that are counted from the first token, padding included (BART, RoBERTa, RoFormer as decoders).
    """

    def ask(ids: Tensor) -> tuple[Tensor, Tensor]:
        whole: list[int] = ids[0].tolist()
        texts = [whole, whole[len(whole) // 2 :], whole[-SHORT:]]
        rows, mask = padded(texts, ids.device)
        logits = model(input_ids=rows, use_cache=False, **padding(model, mask)).logits
        alone = [_whole(model, torch.tensor([text], device=ids.device))[0] for text in texts]
        return torch.cat([row[-len(text) :] for row, text in zip(logits, texts, strict=True)]), torch.cat(alone)

    return _answer(model, "counts padding as text, so texts of unequal lengths are read one length at a time", ask)


def continues(model: PreTrainedModel) -> bool:
    """Whether texts that are read in parts, and change places in between, get the logits of texts read at once.

    Asked of unchanged attention only: calibration may depend on all queries of a part.
    """

    def ask(ids: Tensor) -> tuple[Tensor, Tensor]:
        both, order = torch.cat([ids, ids.flip(1)]), torch.tensor([1, 0], device=ids.device)
        cache, found = DynamicCache(config=model.config), list[Tensor]()
        ends = sorted({min(SHORT, ids.shape[1] - 1), ids.shape[1] // 2, ids.shape[1]})
        for start, end in pairwise([0, *ends]):
            logits = model(input_ids=both[:, start:end], past_key_values=cache, use_cache=True).logits
            found = [*[part[order] for part in found], logits[order]]
            cache.batch_select_indices(order)
            both = both[order]
        return torch.cat(found, dim=1), _whole(model, both)

    return _answer(model, "computes something else from a cache, so texts are read whole", ask)


def generates(model: PreTrainedModel) -> bool:
    """Whether every step of greedy generation has the logits of the whole text; True if attention is changed."""
    if model.config._attn_implementation.startswith(REPLACEMENT_PREFIX):
        return True

    def ask(ids: Tensor) -> tuple[Tensor, Tensor]:
        prompts = torch.cat([ids, ids.flip(1)])[:, : (ids.shape[1] + 1) // 2]
        steps = GenerationConfig(
            do_sample=False, max_new_tokens=ids.shape[1] - prompts.shape[1], pad_token_id=0, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        own, model.generation_config = model.generation_config, steps
        try:
            output = model.generate(input_ids=prompts, attention_mask=torch.ones_like(prompts))
        finally:
            model.generation_config = own
        found = torch.stack(output.logits, dim=1)
        return found, _whole(model, output.sequences[:, :-1])[:, prompts.shape[1] - 1 :]

    return _answer(model, "generates something else with a cache, so each token is generated from the whole text", ask)


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
    ids = _tokens(model)
    _whole(model, ids)  # a model that cannot read at all says so itself
    is_training = model.training
    if is_training:
        model.eval()  # dropout would differ
    try:
        one, other = (logits.float().log_softmax(-1) for logits in ask(ids))
    except torch.OutOfMemoryError:
        raise
    except FAULTS:
        is_equal, is_telling = False, True
    else:
        if bool(other.isnan().any()):
            return True  # whoever reads such logits refuses them
        one = one if one.shape == other.shape else torch.full_like(other, torch.nan)
        spread = float((other - other.mean(-1, keepdim=True)).square().mean())
        error = float((one - other).square().mean(-1).amax())
        is_equal = error <= max(1e-3, 16 * torch.finfo(model.dtype).eps) ** 2 * spread
        is_telling = spread > 1e-10 * float(other.square().mean())
    finally:
        if is_training:
            model.train()
    if is_telling:  # a model whose logits are all equal may learn
        known[otherwise] = is_equal
    if not is_equal:
        logger.warning_once(f"{type(model).__name__} {otherwise}")
    return is_equal


def _tokens(model: PreTrainedModel) -> Tensor:
    """``TOKENS`` tokens (1, N) from all over the vocabulary, none of them padding; fewer if the model reads fewer."""
    config = model.config.get_text_config()
    count = min(TOKENS, getattr(config, "max_position_embeddings", None) or TOKENS)
    step = max(1, config.vocab_size // (TOKENS + 3))
    ids = [(place * step + 1) % config.vocab_size for place in range(count)]
    unused = getattr(config, "pad_token_id", None)
    return torch.tensor([[0 if index == unused else index for index in ids]], device=model.device)
