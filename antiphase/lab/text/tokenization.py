"""Tokenizers: training a byte-level BPE, cutting long documents without changing tokens, prompts and chat templates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from jinja2 import TemplateError
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from antiphase.base.errors import InputError, brief
from antiphase.base.templates import UNUSABLE
from antiphase.base.trial import tried
from antiphase.lab.text.pieces import pieces

END = "<|endoftext|>"
PAD = "<|pad|>"
SMALLEST_VOCABULARY = 256 + 2
LARGEST_VOCABULARY = 10_000_000
"""Entries for which the trainers take memory at once, and end the process where there is none."""
TRAINING_PIECE = 1 << 16
"""Number of characters passed to the trainer at a time."""

PAGE_OPENING = "page_opening"
"""Entry in a tokenizer's settings: the token before pages of tasks for models trained here, or "" for none."""

PROMPT_TAIL = 48
"""Number of characters at the end of a prompt that are tokenized together with the text after it."""


UNDATED = "{%- macro strftime_now(form) -%}26 July 2024{%- endmacro -%}"
"""Stands before chat templates that write today's date, so that a prompt does not depend on the day.

It is the date that Llama 3.2's template writes where it is told none.
"""


def train_tokenizer(texts: Iterable[str], vocabulary_size: int, *, digits: int = 1) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on ``texts``; equal texts give an equal tokenizer.

    A token contains at most ``digits`` digits, grouped from the left of a number. With 1, every digit is its own token,
    so numbers of equal width have equally many tokens. With more, a space may join the first group, and widths are
    equal if the texts contain every group of digits often enough. Decoding restores any text exactly. ``<|endoftext|>``
    starts and ends sequences, and ``<|pad|>`` pads them on the left; if they occur in a text, they become these tokens
    as well.

    Args:
        texts: documents, which are read once and in pieces, so memory does not grow with their length.
        vocabulary_size: number of entries including both special tokens, at least 258. Little text may give fewer.

    Raises:
        InputError: ``vocabulary_size`` is too small or too large.
    """
    if vocabulary_size < SMALLEST_VOCABULARY:
        raise InputError(
            f"data.vocabulary_size must be at least {SMALLEST_VOCABULARY} (256 bytes and 2 special tokens), "
            f"got {vocabulary_size}"
        )
    check_vocabulary(vocabulary_size)
    backend = Tokenizer(models.BPE())
    # Digits first, because the pattern of ByteLevel alone would join runs of digits, and a space to the first of them
    numbers = (
        pre_tokenizers.Digits(individual_digits=True)
        if digits == 1
        else pre_tokenizers.Split(Regex(rf" ?\d{{1,{digits}}}"), "isolated")
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence([numbers, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # Texts that separate documents by <|endoftext|> must not spend merges on its letters
    parts = (part for text in texts for part in text.split(END))
    backend.train_from_iterator((piece for part in parts for piece in pieces(part, TRAINING_PIECE)), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END,
        bos_token=END,
        pad_token=PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
    note_training(tokenizer)
    return tokenizer


def check_vocabulary(size: int) -> None:
    """
    Raises:
        InputError: no trainer has the memory for so many entries.
    """
    if size > LARGEST_VOCABULARY:
        raise InputError(f"data.vocabulary_size must be at most {LARGEST_VOCABULARY}, got {brief(size)}")


def id_count(tokenizer: PreTrainedTokenizerBase) -> int:
    """How many rows a table needs for all ids. Ids of added tokens may leave gaps, so there can be fewer tokens."""
    return max(tokenizer.get_vocab().values()) + 1


@lru_cache(maxsize=4)
def line_breaks(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """All tokens whose text contains a line break."""
    return tuple(token for token in range(id_count(tokenizer)) if "\n" in tokenizer.decode([token]))


def end_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token between documents: the end of a text or, in an encoder's tokenizer, what separates its parts."""
    found = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    return found if isinstance(found, int) else None


def check_chat_template(tokenizer: PreTrainedTokenizerBase, place: str) -> None:
    """
    Raises:
        InputError: the model that ``place`` names has no chat template.
    """
    if tokenizer.chat_template is None:
        raise InputError(f"{place} has no chat template; leave out --chat-template, or give an instruct model")


def undated(template: str) -> str:
    """A chat template that writes the same date on every day."""
    return UNDATED + template if "strftime_now" in template else template


def in_chat(tokenizer: PreTrainedTokenizerBase, message: str) -> str:
    """A user's message in the model's chat template, up to where the answer begins; special tokens are written out.

    Raises:
        InputError: the template cannot be used.
    """
    messages = [{"role": "user", "content": message}]

    def written() -> str:
        template = undated(tokenizer.get_chat_template())
        return str(
            tokenizer.apply_chat_template(messages, chat_template=template, add_generation_prompt=True, tokenize=False)
        )

    return chat_written(written)


def chat_written(write: Callable[[], str]) -> str:
    """What a function writes by a model's chat template, which comes with the model and may do anything.

    Raises:
        InputError: the template cannot be used.
    """
    try:
        return tried(write)
    except (TemplateError, *UNUSABLE) as error:
        raise InputError(f"the model's chat template cannot be used ({error}); leave out --chat-template") from None


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, prompt: str, *, chat: bool = False) -> list[int]:
    """Token ids of a prompt, as it is, or as a user's message in the model's chat template."""
    if chat:
        return list(tokenizer(in_chat(tokenizer, prompt), add_special_tokens=False)["input_ids"])
    return opened_tokens(tokenizer, prompt)


def opened_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of a text that goes on, after the tokenizer's first special tokens, if it puts some before a text.

    Those that it puts after a text, such as an end token with ``add_eos_token``, are left out.
    """
    ids = list(tokenizer(text)["input_ids"])
    return ids[: len(ids) - len(_around(tokenizer)[1])]


def note_training(tokenizer: PreTrainedTokenizerBase) -> None:
    """Note in a tokenizer, and so in the files that it writes, how models that are trained with it here read: windows
    of text without an opening token, pages of tasks after bos, or eos where there is none.
    """
    opening = tokenizer.bos_token if tokenizer.bos_token is not None else tokenizer.eos_token
    tokenizer.init_kwargs[PAGE_OPENING] = opening or ""


def opening_of_text(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids before a window of text: what the tokenizer puts before a text, as those of Llama and Gemma do; none for a
    model that was trained here, whose windows had none.
    """
    return () if PAGE_OPENING in tokenizer.init_kwargs else _around(tokenizer)[0]


def opening_of_page(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids before a page of a task that is written here, such as needles: what the tokenizer puts before a text, or what
    it was for a model that was trained here.

    Raises:
        InputError: the files of a tokenizer name a token that it does not have.
    """
    if PAGE_OPENING not in tokenizer.init_kwargs:
        return _around(tokenizer)[0]
    if (token := tokenizer.init_kwargs[PAGE_OPENING]) == "":
        return ()
    if token not in tokenizer.all_special_tokens:
        raise InputError(f"tokenizer_config.json: {PAGE_OPENING} is {brief(token)}, which is no special token of it")
    return (tokenizer.all_special_ids[tokenizer.all_special_tokens.index(token)],)


def openings(tokenizer: PreTrainedTokenizerBase) -> dict[str, list[str]]:
    """Both openings in words, as records have them."""
    found = {"text": opening_of_text(tokenizer), "page": opening_of_page(tokenizer)}
    return {name: [str(tokenizer.convert_ids_to_tokens(index)) for index in ids] for name, ids in found.items()}


@lru_cache(maxsize=4)
def _around(tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids of the special tokens that the tokenizer puts before and after a text."""
    found = tokenizer("A text.", return_special_tokens_mask=True)
    ids, mask = found["input_ids"], found["special_tokens_mask"]
    if 0 not in mask:  # it knows no word of the text
        return (), ()
    return tuple(ids[: mask.index(0)]), tuple(ids[len(ids) - mask[::-1].index(0) :])


def last_words(prompt: str) -> str:
    """The last line of a prompt, or its end: how the text after it is tokenized depends on nothing before."""
    return prompt.split("\n")[-1][-PROMPT_TAIL:] or prompt[-PROMPT_TAIL:]


def tokens_after(tokenizer: PreTrainedTokenizerBase, prompt: str, text: str) -> tuple[int, ...]:
    """Token ids of a text after a prompt, tokenized together with the prompt's last words.

    Raises:
        InputError: the first token of the text would contain a part of the prompt.
    """
    anchor = last_words(prompt)
    before = tokenizer(anchor, add_special_tokens=False)["input_ids"]
    whole = tokenizer(anchor + text, add_special_tokens=False)["input_ids"]
    if whole[: len(before)] != before or len(whole) == len(before):
        raise InputError(
            f"the answer {text!r} is tokenized together with the end of the prompt {anchor[-12:]!r}; end the "
            "prompt with a colon or a line break, or set the delimiter"
        )
    return tuple(whole[len(before) :])
