"""Comparing tokenizers on a text: ``antiphase tokenize``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphase.base.errors import InputError
from antiphase.lab.lineage.names import TRAINED_TOKENIZERS, check_training, vocabulary_flag
from antiphase.lab.settings.flags import Settings, argument, flag


@dataclass(frozen=True, kw_only=True)
class TokenizeSettings(Settings):
    """Show the words, tokens and ids of a text, and the tokens per word, for several tokenizers.

    Example: [bold]antiphase tokenize "The harbour lay quiet." --data book.txt[/]
    """

    folder = "optional"

    text: str = argument("TEXT", "Text to tokenize.")
    data: Sequence[str] = flag("Text on which tokenizers are trained; default: TEXT itself. Repeatable.", default=())
    text_field: str | None = flag("Column with the text.", default=None)
    tokenizers: Sequence[str] = flag(
        "words, characters, bpe, unigram, a folder or Hub name; default: the first four.",
        name="--tokenizer",
        default=(),
    )
    vocabulary: int | None = vocabulary_flag("")

    def check(self) -> None:
        super().check()
        if not self.text.strip():
            raise InputError("TEXT is empty; give a sentence to tokenize")
        if any("\ud800" <= letter <= "\udfff" for letter in self.text):  # bytes from the shell that are not UTF-8
            raise InputError("TEXT is not valid Unicode; write it in UTF-8")
        if len(set(self.tokenizers)) < len(self.tokenizers):
            raise InputError("--tokenizer must not name one twice")
        given = {"--vocabulary": self.vocabulary, "--data": self.data}
        check_training(self.tokenizers or TRAINED_TOKENIZERS, given)
        if self.text_field is not None and not self.data:
            raise InputError("--text-field is for --data; remove it, or give --data")


SETTINGS = TokenizeSettings
