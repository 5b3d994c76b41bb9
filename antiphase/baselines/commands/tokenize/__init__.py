"""A text cut by several tokenizers: ``antiphase tokenize``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphase.errors import InputError
from antiphase.flags import Settings, argument, flag


@dataclass(frozen=True, kw_only=True)
class TokenizeSettings(Settings):
    """Show the words, pieces and ids of a text, and pieces per word, for several tokenizers.

    Example: [bold]antiphase tokenize "The harbour lay quiet." --data book.txt[/]
    """

    folder = "optional"

    text: str = argument("TEXT", "What to cut.")
    data: Sequence[str] = flag("Text that tokenizers learn from; none: TEXT itself. Repeatable.", default=())
    text_field: str | None = flag("Column that holds the text.", default=None)
    tokenizers: Sequence[str] = flag(
        "words, characters, bpe, unigram, a folder or Hub name; none: the four.", name="--tokenizer", default=()
    )
    vocabulary: int | None = flag("Entries of a trained tokenizer, at most.", default=None, least=3)

    def check(self) -> None:
        super().check()
        if not self.text.strip():
            raise InputError("TEXT is empty; give a sentence to cut")
        if any("\ud800" <= letter <= "\udfff" for letter in self.text):  # bytes of a shell that are not UTF-8
            raise InputError("TEXT is not valid Unicode; write it in UTF-8")
        if len(set(self.tokenizers)) < len(self.tokenizers):
            raise InputError("--tokenizer must not name one twice")


SETTINGS = TokenizeSettings
