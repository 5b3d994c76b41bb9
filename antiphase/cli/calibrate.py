"""Commands that find attention sinks to reduce, and reduce them."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphase.cli.console import count_progress, finish, make_console, sayer
from antiphase.cli.options import (
    AlphaOption,
    BetaOption,
    CausalModel,
    DeviceOption,
    ModeOption,
    NewOutputOption,
    OutputOption,
    ResumeOption,
    SeedOption,
    ShotsOption,
    TaskOption,
    TaskSamples,
    ranges,
)

app = typer.Typer(
    help="Reduce attention sinks of a pretrained model, head by head, without training.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command("search")
def calibrate_search(
    model: CausalModel,
    output: OutputOption,
    task: TaskOption = None,
    samples: TaskSamples = 200,
    shots: ShotsOption = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="Search method: exhaustive, cached (lower layers run once) or screen (ranks heads by gradients "
            "first).",
        ),
    ] = "exhaustive",
    layers: Annotated[
        str | None,
        typer.Option(
            "--layers", help="Layers to search, counted from 0, e.g. 2-9 or 2,4,6; default: all.", show_default=False
        ),
    ] = None,
    score: Annotated[
        str, typer.Option("--score", help="Score to raise: metric, or probability of the right answers.")
    ] = "metric",
    held_out: Annotated[
        float, typer.Option("--held-out", help="Share of the samples held out to measure the gain.")
    ] = 0.5,
    alpha: AlphaOption = 5.0,
    beta: BetaOption = 0.4,
    mode: ModeOption = "prompt",
    seed: SeedOption = 0,
    resume: ResumeOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Find the heads whose calibration raises a score, and measure the gain on held-out samples.

    Writes plan.json, record.json and report.html.
    Example: [bold]antiphase calibrate search MODEL --task trec.yaml --samples 200 --output runs/search[/]
    """
    from antiphase.studies.calibration import SearchRequest, search

    console = make_console()
    request = SearchRequest(
        name=model, tasks=task or [], samples=samples, shots=shots, method=method, score=score, held_out=held_out,
        layers=None if layers is None else ranges("--layers", layers), alpha=alpha, beta=beta, mode=mode, seed=seed,
        device=device,
    )  # fmt: skip
    with count_progress(console, "heads") as report:
        record = search(request, output, resume=resume, say=sayer(console), report=report)
    finish(console, record, output)
    console.print(f"plan:   {output / 'plan.json'}", highlight=False)


@app.command("apply")
def calibrate_apply(
    model: CausalModel,
    output: NewOutputOption,
    plan: Annotated[str, typer.Option("--plan", help="plan.json written by a search.")],
    task: TaskOption = None,
    text: Annotated[list[str] | None, typer.Option("--text", help="Text to continue. Repeatable.")] = None,
    samples: TaskSamples = 200,
    shots: ShotsOption = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", help="Number of tokens to generate after a text.")
    ] = 64,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Evaluate tasks or continue texts, with and without a plan.

    Example: [bold]antiphase calibrate apply MODEL --plan runs/search/plan.json --task sst-5.yaml --output runs/apply[/]
    """
    from antiphase.studies.calibration import ApplyRequest, apply

    console = make_console()
    request = ApplyRequest(
        name=model, plan=plan, tasks=task or [], texts=text or [], samples=samples, shots=shots,
        max_new_tokens=max_new_tokens, seed=seed, device=device,
    )  # fmt: skip
    record = apply(request, output, say=sayer(console))
    finish(console, record, output)


@app.command("study")
def calibrate_study(
    model: CausalModel,
    output: OutputOption,
    task: TaskOption = None,
    samples: TaskSamples = 200,
    shots: ShotsOption = None,
    only: Annotated[
        str | None,
        typer.Option("--only", help="Experiments to run, e.g. alpha,beta,controls; default: all.", show_default=False),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            "--layers", help="Layers to search, counted from 0, e.g. 2-9 or 2,4,6; default: all.", show_default=False
        ),
    ] = None,
    score: Annotated[str, typer.Option("--score", help="Score that selects heads: metric or probability.")] = "metric",
    held_out: Annotated[
        float, typer.Option("--held-out", help="Share of the samples held out to measure the gain.")
    ] = 0.5,
    alpha: AlphaOption = 5.0,
    beta: BetaOption = 0.4,
    mode: ModeOption = "prompt",
    seed: SeedOption = 0,
    resume: ResumeOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Repeat the calibration paper's experiments: each head alone, other rules, sweeps, and controls.

    Example: [bold]antiphase calibrate study MODEL --task trec.yaml --output runs/study[/]
    """
    from antiphase.studies.calibration_effects import PARTS, StudyRequest, study

    console = make_console()
    parts = PARTS if only is None else [part.strip() for part in only.split(",")]
    request = StudyRequest(
        name=model, tasks=task or [], samples=samples, shots=shots, parts=parts,
        layers=None if layers is None else ranges("--layers", layers), score=score, held_out=held_out,
        alpha=alpha, beta=beta, mode=mode, seed=seed, device=device,
    )  # fmt: skip
    with count_progress(console, "settings") as report:
        record = study(request, output, resume=resume, say=sayer(console), report=report)
    finish(console, record, output)
