"""The command that trains encoders and decoders on parallel text."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphase.cli.console import finish, make_console, sayer, share_progress
from antiphase.cli.options import DeviceOption, OutputOption, ResumeOption, numbers


def translate(
    output: OutputOption,
    train: Annotated[
        list[str] | None,
        typer.Option("--train", help="Pairs: source<TAB>target lines or named columns; none: generated. Repeatable."),
    ] = None,
    test: Annotated[
        list[str] | None, typer.Option("--test", help="Pairs to test on; none: a tenth is held out. Repeatable.")
    ] = None,
    models: Annotated[
        str, typer.Option("--models", help="transformer, differential, differential_v2.")
    ] = "transformer,differential",
    seeds: Annotated[str, typer.Option("--seeds", "--seed", help="Comma-separated, e.g. 0,1,2.")] = "0",
    samples: Annotated[
        int | None, typer.Option("--samples", help="Generated training pairs.", show_default="8000")
    ] = None,
    test_samples: Annotated[
        int | None, typer.Option("--test-samples", help="Generated held-out pairs.", show_default="400")
    ] = None,
    source_field: Annotated[str, typer.Option("--source-field", help="Column that holds the source.")] = "source",
    target_field: Annotated[str, typer.Option("--target-field", help="Column that holds the target.")] = "target",
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer", help="words, characters, bpe, unigram, or a folder or Hub name.", show_default="words"
        ),
    ] = None,
    vocabulary: Annotated[int, typer.Option("--vocabulary", help="Entries of a trained tokenizer, at most.")] = 30_000,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="FIELD=VALUE or MODEL.FIELD=VALUE, e.g. epochs=12. Repeatable."),
    ] = None,
    resume: ResumeOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Train and test encoders and decoders on parallel text, softmax and differential side by side.

    Example: [bold]antiphase translate --output runs/translate[/]
    """
    from antiphase.studies.translate import TranslateRequest
    from antiphase.studies.translate import translate as run_translate

    console = make_console()
    request = TranslateRequest(
        train=train or [], test=test or [], models=[name.strip() for name in models.split(",")],
        seeds=numbers("--seeds", seeds, int), samples=samples, test_samples=test_samples, source_field=source_field,
        target_field=target_field, tokenizer=tokenizer, vocabulary=vocabulary, settings=settings or [], device=device,
    )  # fmt: skip
    with share_progress(console, "runs") as report:
        record = run_translate(request, output, resume=resume, say=sayer(console), report=report)
    finish(console, record, output)
