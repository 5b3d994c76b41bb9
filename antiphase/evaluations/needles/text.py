"""Multi-needle retrieval in plain text (2410.05258, section 3.3, table 2, figure 5): greedy decoding, and the first
whole numbers of the output must be the right ones in the order asked.

A system is anything that goes on with a text. All systems read the same contexts, so their differences are paired.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.data.haystacks import Cell, Context
from antiphase.evaluations.retrieval import prompts_of, room_for
from antiphase.scoring.likelihood import generated_tokens

System = Callable[[Sequence[Context]], list[str]]
"""Contexts to what a system writes after each."""

Contexts = Mapping[Cell, Sequence[Context]]
"""What is read in each cell; the order of cells is that of the results."""

NUMBER = re.compile(r"[0-9]+")


def is_right(output: str, context: Context) -> bool:
    """Whether the first R whole numbers of the output are the answers in the order asked. An empty output is wrong."""
    return tuple(numbers_of(output, len(context.answers))) == context.answers


def numbers_of(output: str, count: int) -> list[str]:
    """The first ``count`` whole numbers, as written; fewer where there are no more."""
    return NUMBER.findall(output)[:count]


@dataclass(frozen=True)
class Generating:
    """What a model writes by greedy decoding; memory is linear in the length of a context."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str = "MODEL"
    """What messages call it."""

    def __call__(self, contexts: Sequence[Context]) -> list[str]:
        prompts = prompts_of(self.model, self.tokenizer, contexts, self.name)
        outputs = generated_tokens(self.model, prompts, longest=room_for(self.tokenizer, contexts))
        return [self.tokenizer.decode(tokens) for tokens in outputs]


def text_needles(system: System, contexts: Contexts) -> list[dict[str, Any]]:
    """One row for each cell.

    Returns:
        Rows with the cell's ``needles``, ``queries``, ``length``, ``depth`` and ``guess_rate``; ``right``, 0 or 1 for
        each context; ``samples`` and ``correct``, their numbers; ``by_place``, the share right at each place of the
        answer; ``silent``, outputs without any number; ``example``, the first output and what was right.
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
