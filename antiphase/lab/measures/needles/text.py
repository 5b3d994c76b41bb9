"""Multi-needle retrieval in plain text (2410.05258, section 3.3, table 2, figure 5), with greedy decoding.

A system is anything that continues a text. All systems read the same contexts, so their differences are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.base.errors import named
from antiphase.lab.measures.context_runner import prompts_of, room_for
from antiphase.lab.scoring.likelihood import generated_tokens
from antiphase.lab.scoring.needles import is_right, numbers_of
from antiphase.lab.text.haystacks import Cell, Context

System = Callable[[Sequence[Context]], list[str]]
"""Takes contexts and returns a system's output after each."""

Contexts = Mapping[Cell, Sequence[Context]]
"""Contexts of each cell; results have the order of the cells."""


@dataclass(frozen=True)
class Generating:
    """A model's outputs by greedy decoding; memory is linear in the length of a context."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str = named("model")
    """Name of the model in messages."""
    chat: bool = False
    """Whether contexts go through the model's chat template."""

    def __call__(self, contexts: Sequence[Context]) -> list[str]:
        prompts = prompts_of(self.model, self.tokenizer, contexts, self.name, chat=self.chat)
        outputs = generated_tokens(self.model, prompts, longest=room_for(self.tokenizer, contexts))
        return [self.tokenizer.decode(tokens) for tokens in outputs]


def text_needles(system: System, contexts: Contexts) -> list[dict[str, Any]]:
    """One row per cell.

    Returns:
        Rows with the cell's ``needles``, ``queries``, ``length``, ``depth`` and ``guess_rate``; ``right``, 0 or 1 for
        each context; ``samples`` and ``correct``, their counts; ``by_place``, the share of correct numbers by position
        in the answer; ``silent``, outputs without any number; ``example``, the first output and the correct answers.
    """
    rows = []
    for cell, texts in contexts.items():
        outputs = system(texts)
        right = [int(is_right(output, context)) for output, context in zip(outputs, texts, strict=True)]
        found = [numbers_of(output, cell.queries) for output in outputs]
        rows.append(
            {
                **vars(cell),
                "guess_rate": cell.guess_rate,
                "samples": len(texts),
                "correct": sum(right),
                "by_place": [
                    fmean(
                        numbers[place : place + 1] == [context.answers[place]]
                        for numbers, context in zip(found, texts, strict=True)
                    )
                    for place in range(cell.queries)
                ],
                "silent": sum(not numbers for numbers in found),
                "right": right,
                "example": {"output": outputs[0], "answers": list(texts[0].answers)},
            }
        )
    return rows
