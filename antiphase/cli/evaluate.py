"""Commands that measure a causal language model: one for each measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from antiphase.cli.commands import command_of
from antiphase.cli.console import count_progress, finish, make_console, sayer, share_progress
from antiphase.cli.options import (
    CausalModel,
    DeviceOption,
    OutputOption,
    ResumeOption,
    SeedOption,
    numbers,
)
from antiphase.registry import measurements

app = typer.Typer(
    help="Measure a model: its held-out loss, also by position; retrieval; learning in context; where its attention "
    "goes; outliers and few bits.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command("hallucination")
def hallucination(
    model: CausalModel,
    output: OutputOption,
    judge: Annotated[
        str, typer.Option("--judge", help="Model that judges: folder or Hub name, or its name at --judge-url.")
    ],
    data: Annotated[
        list[str],
        typer.Option("--data", help="File with documents and summaries, or contexts, questions, answers. Repeatable."),
    ],
    samples: Annotated[int, typer.Option("--samples", help="Rows of each file, drawn at random.")] = 100,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="Tokens that the model may write.")] = 64,
    judge_url: Annotated[
        str | None,
        typer.Option(
            "--judge-url", help="OpenAI-compatible endpoint, e.g. http://localhost:8000/v1.", show_default=False
        ),
    ] = None,
    judge_key_file: Annotated[
        str | None, typer.Option("--judge-key-file", help="File that holds the endpoint's key.", show_default=False)
    ] = None,
    judge_key_variable: Annotated[
        str | None,
        typer.Option("--judge-key-variable", help="Environment variable that holds it.", show_default=False),
    ] = None,
    judge_price: Annotated[
        str | None,
        typer.Option("--judge-price", help="Dollars for a million tokens read,written: 2.5,10.", show_default=False),
    ] = None,
    judge_budget: Annotated[
        float | None, typer.Option("--judge-budget", help="Dollars that it may cost at most.", show_default=False)
    ] = None,
    judge_answers: Annotated[
        str | None,
        typer.Option("--judge-answers", help="File that keeps its answers; none: one in --output.", show_default=False),
    ] = None,
    judge_tokens: Annotated[int, typer.Option("--judge-tokens", help="Tokens of an answer of the judge.")] = 16,
    judge_timeout: Annotated[float, typer.Option("--judge-timeout", help="Seconds to wait for the endpoint.")] = 60.0,
    seed: SeedOption = 0,
    resume: ResumeOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Whether summaries and answers are true of the text they are about, as a judge says; and how often the judge errs.

    Example: [bold]antiphase evaluate hallucination MODEL --data xsum.jsonl --judge JUDGE --output runs/faithful[/]
    """
    from antiphase.studies.hallucination import HallucinationRequest, evaluate_hallucination

    console = make_console()
    request = HallucinationRequest(
        name=model, data=data, judge=judge, judge_url=judge_url, judge_key_file=judge_key_file,
        judge_key_variable=judge_key_variable, judge_answers=judge_answers, judge_tokens=judge_tokens,
        judge_timeout=judge_timeout, judge_budget=judge_budget, samples=samples, max_new_tokens=max_new_tokens,
        judge_price=numbers("--judge-price", judge_price, float) if judge_price else (), seed=seed, device=device,
    )  # fmt: skip
    with count_progress(console, "texts") as report:
        record = evaluate_hallucination(request, output, resume=resume, say=sayer(console), report=report)
    finish(console, record, output)


def _measure(settings: Any, *, output: Path, resume: bool) -> None:
    """One of the measurements that have a folder."""
    from antiphase.evaluations.running import evaluate

    console = make_console()
    with share_progress(console, "parts") as report:
        record = evaluate(settings, output, resume=resume, say=sayer(console), report=report)
    finish(console, record, output)


for name, measurement in measurements("evaluate").items():
    app.command(name)(command_of(measurement.settings, _measure))
