"""Commands that measure what models find in a context, and where they look for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphase.cli.console import count_progress, finish, make_console, sayer
from antiphase.cli.options import CausalModel, DataOption, DeviceOption, OutputOption, ResumeOption, SeedOption, numbers

AgainstOption = Annotated[
    list[str] | None,
    typer.Option("--against", help="A further model on the same contexts, compared with MODEL. Repeatable."),
]
LengthsOption = Annotated[
    str | None,
    typer.Option("--length", help="Tokens of a context and its output, e.g. 4096,8192.", show_default=False),
]
NeedlesOption = Annotated[
    str | None, typer.Option("--needles", help="Numbers of needles, e.g. 2,4,8.", show_default=False)
]
QueriesOption = Annotated[
    str | None, typer.Option("--queries", help="Numbers of facts asked for, e.g. 1,2.", show_default=False)
]
DepthsOption = Annotated[str, typer.Option("--depths", help="Depths of the asked needle, 0 to 1.")]
SamplesOption = Annotated[int, typer.Option("--samples", help="Contexts in each cell.")]
TextFieldOption = Annotated[str | None, typer.Option("--text-field", help="Column that holds the text.")]
DEPTHS = "0,0.25,0.5,0.75,1"


def needles(
    model: CausalModel,
    output: OutputOption,
    against: AgainstOption = None,
    data: DataOption = None,
    text_field: TextFieldOption = None,
    length: LengthsOption = None,
    needles: NeedlesOption = None,
    queries: QueriesOption = None,
    depths: DepthsOption = DEPTHS,
    samples: SamplesOption = 50,
    seed: SeedOption = 0,
    resume: ResumeOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Hide numbers of cities in essays or books, ask for some, and score the first whole numbers of the output.

    Example: [bold]antiphase evaluate needles runs/one --data essays --needles 8 --length 512,1024 --output runs/n[/]
    """
    measure(
        "needles", model, output, against, data, text_field, length, needles, queries, depths, samples, seed, device,
        resume=resume,
    )  # fmt: skip


def allocation(
    model: CausalModel,
    output: OutputOption,
    against: AgainstOption = None,
    data: DataOption = None,
    text_field: TextFieldOption = None,
    length: LengthsOption = None,
    needles: NeedlesOption = None,
    queries: QueriesOption = None,
    depths: DepthsOption = DEPTHS,
    samples: SamplesOption = 50,
    seed: SeedOption = 0,
    resume: ResumeOption = False,
    device: DeviceOption = "auto",
) -> None:
    """See where attention goes at the end of the question: answer, other needles, filler, by depth of the answer.

    Example: [bold]antiphase evaluate allocation runs/one --data essays --needles 8 --output runs/allocation[/]
    """
    measure(
        "allocation", model, output, against, data, text_field, length, needles, queries, depths, samples, seed, device,
        resume=resume,
    )  # fmt: skip


def measure(
    measurement: str,
    model: str,
    output: Path,
    against: list[str] | None,
    data: list[str] | None,
    text_field: str | None,
    length: str | None,
    needles: str | None,
    queries: str | None,
    depths: str,
    samples: int,
    seed: int,
    device: str,
    *,
    resume: bool,
) -> None:
    """Run the measurement and print its record's tables."""
    from antiphase.studies.retrieval import RetrievalRequest, evaluate_retrieval

    console = make_console()
    request = RetrievalRequest(
        measurement=measurement, names=[model, *(against or [])], paths=data or [], text_field=text_field,
        lengths=numbers("--length", length, int) if length else [],
        needles=numbers("--needles", needles, int) if needles else [],
        queries=numbers("--queries", queries, int) if queries else [],
        depths=numbers("--depths", depths, float), samples=samples, seed=seed, device=device,
    )  # fmt: skip
    with count_progress(console, "cells") as report:
        record = evaluate_retrieval(request, output, resume=resume, say=sayer(console), report=report)
    finish(console, record, output)
