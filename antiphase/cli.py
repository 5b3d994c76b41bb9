"""The command line. Arguments are parsed first and the heavy libraries imported late, so ``--help`` is quick."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from antiphase.errors import InputError, Interrupted

if TYPE_CHECKING:
    from rich.console import Console

    from antiphase.config import Preset
    from antiphase.records import Record
    from antiphase.studies.jobs import Job

app = typer.Typer(
    name="antiphase",
    help="Noise-cancelling attention for PyTorch and Hugging Face.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)

PresetOption = Annotated[str, typer.Option("--preset", help="Name of a shipped preset, or a YAML file.")]
OutputOption = Annotated[Path, typer.Option("--output", help="Folder for the results; must be new, or use --resume.")]
NewOutputOption = Annotated[Path, typer.Option("--output", help="Folder for the results; must be new or empty.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of what is drawn at random.")]
DataOption = Annotated[
    list[str] | None,
    typer.Option("--data", help="File, folder or Hub dataset with text. Repeatable.", show_default=False),
]
ValidationOption = Annotated[
    list[str] | None,
    typer.Option("--validation", help="Held-out text, as for --data. Repeatable.", show_default=False),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="KEY=VALUE over the preset, e.g. training.steps=200. Repeatable.", show_default=False),
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with the run that --output holds.")]
SeedsOption = Annotated[str | None, typer.Option("--seeds", help="Comma-separated, e.g. 0,1,2.", show_default=False)]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:0.")]


class Measurement(StrEnum):
    """What ``antiphase evaluate`` can measure."""

    perplexity = "perplexity"
    long_context = "long-context"
    many_shot = "many-shot"
    needles = "needles"
    allocation = "allocation"
    outliers = "outliers"
    quantization = "quantization"


@app.command()
def compare(
    output: OutputOption,
    preset: PresetOption = "demo",
    data: DataOption = None,
    validation: ValidationOption = None,
    seeds: SeedsOption = None,
    resume: ResumeOption = False,
    settings: SetOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Train softmax and differential models side by side and show what their attention does.

    Writes record.json, report.html and every model.
    Example: [bold]antiphase compare --preset demo --output runs/demo[/]
    """
    from antiphase.studies.compare import compare as run_compare

    chosen = _preset(preset, settings, data, validation, seeds, device)
    console = _console()
    _describe(console, chosen)
    with _job_progress(console, chosen) as report:
        record = run_compare(chosen, output, resume=resume, report=report, say=_say(console))
    _finish(console, record, output)


@app.command()
def tune(
    output: OutputOption,
    learning_rates: Annotated[str, typer.Option("--learning-rates", help="Comma-separated, e.g. 1e-3,2e-3,4e-3.")],
    preset: PresetOption = "demo",
    data: DataOption = None,
    validation: ValidationOption = None,
    seeds: SeedsOption = None,
    resume: ResumeOption = False,
    settings: SetOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Train both arms at every learning rate of a small grid, so that neither is favoured by its tuning.

    Example: [bold]antiphase tune --preset demo --learning-rates 1e-3,2e-3,4e-3,8e-3 --output runs/tune[/]
    """
    from antiphase.studies.tune import tune as run_tune

    chosen = _preset(preset, settings, data, validation, seeds, device)
    rates = _numbers("--learning-rates", learning_rates, float)
    console = _console()
    _describe(console, chosen)
    with _job_progress(console, chosen) as report:
        record = run_tune(chosen, output, learning_rates=rates, resume=resume, report=report, say=_say(console))
    _finish(console, record, output)


@app.command()
def scaling(
    output: OutputOption,
    widths: Annotated[
        str | None, typer.Option("--widths", help="Hidden sizes, e.g. 64,96,128,192.", show_default=False)
    ] = None,
    steps: Annotated[
        str | None, typer.Option("--steps", help="Numbers of steps, e.g. 200,400,800,1600.", show_default=False)
    ] = None,
    preset: PresetOption = "half-hour",
    data: DataOption = None,
    validation: ValidationOption = None,
    seeds: SeedsOption = None,
    resume: ResumeOption = False,
    settings: SetOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Train every arm at several sizes and for several numbers of steps, and fit laws to the losses.

    Example: [bold]antiphase scaling --data book.txt --widths 64,96,128,192 --output runs/scaling[/]
    """
    from antiphase.studies.scaling import scaling as run_scaling

    chosen = _preset(preset, settings, data, validation, seeds, device)
    console = _console()
    grown = [_numbers(flag, given, int) if given else [] for flag, given in (("--widths", widths), ("--steps", steps))]
    with _job_progress(console, chosen) as report:
        record = run_scaling(
            chosen, output, widths=grown[0], steps=grown[1], resume=resume, report=report, say=_say(console)
        )
    _finish(console, record, output)


@app.command()
def upcycle(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a softmax model trained here.")],
    output: OutputOption,
    seeds: SeedsOption = None,
    resume: ResumeOption = False,
    settings: SetOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Go on training a softmax model as it is, turned into differential V2, and as V2's control, on the same tokens.

    Settings are those that MODEL was trained with, but for what --set changes.
    Example: [bold]antiphase upcycle runs/demo/softmax-seed0 --output runs/upcycle --set training.steps=500[/]
    """
    from antiphase.studies.upcycle import upcycle as run_upcycle
    from antiphase.studies.upcycle import upcycle_preset

    chosen = upcycle_preset(model, output, _overrides(settings, seeds, device))
    console = _console()
    _describe(console, chosen)
    with _job_progress(console, chosen) as report:
        record = run_upcycle(model, output, chosen, resume=resume, report=report, say=_say(console))
    _finish(console, record, output)


@app.command()
def train(
    output: OutputOption,
    preset: PresetOption = "demo",
    data: DataOption = None,
    validation: ValidationOption = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of weights and data order.", show_default=False)
    ] = None,
    resume: ResumeOption = False,
    settings: SetOption = None,
    device: Annotated[
        str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:0.", show_default=False)
    ] = None,
) -> None:
    """Train one model. Under torchrun, on several processes.

    Example: [bold]antiphase train --preset demo --output runs/one --set model.attention_type=softmax[/]
    """
    from antiphase.studies.single import train_run
    from antiphase.training.distributed import is_first_process

    extra = [f"training.seed={seed}"] if seed is not None else []
    extra += [f"training.device={device}"] if device is not None else []
    chosen = _preset(preset, [*(settings or []), *extra], data, validation, None, None)
    console = _console(quiet=not is_first_process())
    with _run_progress(console, chosen.run.training.steps) as report:
        record = train_run(chosen.run, output, resume=resume, report=report, say=_say(console))
    if not console.quiet:
        _finish(console, record, output)


@app.command()
def evaluate(
    measurement: Annotated[Measurement, typer.Argument(help="What to measure.")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Local folder or Hub name of a causal language model.")],
    output: NewOutputOption,
    data: DataOption = None,
    text_field: Annotated[str | None, typer.Option("--text-field", help="Column that holds the text.")] = None,
    length: Annotated[int | None, typer.Option("--length", help="Tokens in a sequence.", show_default=False)] = None,
    needles: Annotated[
        str | None, typer.Option("--needles", help="Numbers of needles, e.g. 2,4,8.", show_default=False)
    ] = None,
    queries: Annotated[
        str | None, typer.Option("--queries", help="Numbers of facts asked for, e.g. 1,2.", show_default=False)
    ] = None,
    depths: Annotated[str, typer.Option("--depths", help="Depths of the asked needle, 0 to 1.")] = "0,0.25,0.5,0.75,1",
    samples: Annotated[int, typer.Option("--samples", help="Sequences, in each cell of a grid.")] = 200,
    task: Annotated[list[str] | None, typer.Option("--task", help="YAML file of a task, for many-shot.")] = None,
    shots: Annotated[
        str, typer.Option("--shots", help="Numbers of examples, for many-shot.")
    ] = "1,2,4,8,16,32,64,128,256,512,1024",
    orders: Annotated[int, typer.Option("--orders", help="Orders of the examples, for many-shot.")] = 10,
    bits: Annotated[str, typer.Option("--bits", help="Of attention logits, for quantization.")] = "16,8,6,4",
    granularity: Annotated[
        str, typer.Option("--granularity", help="What shares a step in quantization: tensor, head or row.")
    ] = "head",
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Measure a model: its held-out loss, also by position; retrieval; learning in context; where its attention goes;
    outliers and few bits.

    Example: [bold]antiphase evaluate needles runs/demo/softmax-seed0 --output runs/needles[/]
    """
    from antiphase.studies.single import Request
    from antiphase.studies.single import evaluate as run_evaluate

    if measurement is Measurement.many_shot:
        _evaluate_many_shot(model, output, task or [], _numbers("--shots", shots, int), orders, samples, seed, device)
        return
    counts = _numbers("--needles", needles, int) if needles else []
    asked = _numbers("--queries", queries, int) if queries else []
    places = _numbers("--depths", depths, float)
    console = _console()
    request = Request(
        measurement=measurement.value, name=model, paths=data or [], text_field=text_field, length=length,
        needles=counts, queries=asked, depths=places, samples=samples, seed=seed, device=device,
        bits=_numbers("--bits", bits, int), granularity=granularity,
    )  # fmt: skip
    record = run_evaluate(request, output, say=_say(console))
    _finish(console, record, output)


def _evaluate_many_shot(
    model: str, output: Path, tasks: list[str], shots: list[int], orders: int, samples: int, seed: int, device: str
) -> None:
    from antiphase.studies.many_shot import ManyShotRequest, evaluate_many_shot

    console = _console()
    request = ManyShotRequest(
        name=model, tasks=tasks, shots=shots, orders=orders, samples=samples, seed=seed, device=device
    )
    with _count_progress(console, "settings") as report:
        record = evaluate_many_shot(request, output, say=_say(console), report=report)
    _finish(console, record, output)


@app.command()
def probe(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Local folder or Hub name of a model.")],
    output: NewOutputOption,
    data: Annotated[list[str], typer.Option("--data", help="File, folder or Hub dataset with text. Repeatable.")],
    text_field: Annotated[str | None, typer.Option("--text-field", help="Column that holds the text.")] = None,
    length: Annotated[int, typer.Option("--length", help="Tokens in a sequence.")] = 512,
    samples: Annotated[int, typer.Option("--samples", help="Sequences.")] = 32,
    alpha: Annotated[float, typer.Option("--alpha", help="A sink receives more than alpha / N.")] = 5.0,
    device: DeviceOption = "auto",
) -> None:
    """Look at what attention does in a model: sinks by layer, head, position and token.

    Example: [bold]antiphase probe runs/demo/softmax-seed0 --data book.txt --output runs/probe[/]
    """
    from antiphase.studies.probe import ProbeRequest
    from antiphase.studies.probe import probe as run_probe

    console = _console()
    request = ProbeRequest(
        name=model, paths=data, text_field=text_field, length=length, samples=samples, alpha=alpha, device=device
    )
    with _count_progress(console, "sequences") as report:
        record = run_probe(request, output, say=_say(console), report=report)
    _finish(console, record, output)


calibrate_app = typer.Typer(
    help="Reduce attention sinks of a pretrained model, head by head, without training.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(calibrate_app, name="calibrate")

CausalModel = Annotated[
    str, typer.Argument(metavar="MODEL", help="Local folder or Hub name of a causal language model.")
]
TaskOption = Annotated[
    list[str] | None,
    typer.Option("--task", help="YAML file of a task; 'template: trec' and 'data: FILE' make one. Repeatable."),
]
TaskSamples = Annotated[int, typer.Option("--samples", help="Samples of each task.")]
ShotsOption = Annotated[
    int | None, typer.Option("--shots", help="Examples before each prompt; none: the task's own number.")
]
AlphaOption = Annotated[float, typer.Option("--alpha", help="A sink receives more than alpha / N.")]
BetaOption = Annotated[float, typer.Option("--beta", help="What is left of a weight on a sink.")]
ModeOption = Annotated[str, typer.Option("--mode", help="Which queries choose the sinks: paper, prompt or running.")]


@calibrate_app.command("search")
def calibrate_search(
    model: CausalModel,
    output: OutputOption,
    task: TaskOption = None,
    samples: TaskSamples = 200,
    shots: ShotsOption = None,
    method: Annotated[
        str, typer.Option("--method", help="exhaustive, cached (lower layers run once) or screen (by gradients).")
    ] = "exhaustive",
    layers: Annotated[
        str | None, typer.Option("--layers", help="0-based, e.g. 2-9 or 2,4,6; none: all.", show_default=False)
    ] = None,
    score: Annotated[str, typer.Option("--score", help="What to raise: metric or probability.")] = "metric",
    held_out: Annotated[float, typer.Option("--held-out", help="Share of the samples that judges the choice.")] = 0.5,
    alpha: AlphaOption = 5.0,
    beta: BetaOption = 0.4,
    mode: ModeOption = "prompt",
    seed: SeedOption = 0,
    resume: ResumeOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Find the heads whose calibration raises a score, and judge them on samples that the search has not seen.

    Writes plan.json, record.json and report.html.
    Example: [bold]antiphase calibrate search MODEL --task trec.yaml --samples 200 --output runs/search[/]
    """
    from antiphase.studies.calibration import SearchRequest, search

    console = _console()
    request = SearchRequest(
        name=model, tasks=task or [], samples=samples, shots=shots, method=method, score=score, held_out=held_out,
        layers=None if layers is None else _ranges("--layers", layers), alpha=alpha, beta=beta, mode=mode, seed=seed,
        device=device,
    )  # fmt: skip
    with _count_progress(console, "heads") as report:
        record = search(request, output, resume=resume, say=_say(console), report=report)
    _finish(console, record, output)
    console.print(f"plan:   {output / 'plan.json'}", highlight=False)


@calibrate_app.command("apply")
def calibrate_apply(
    model: CausalModel,
    output: NewOutputOption,
    plan: Annotated[str, typer.Option("--plan", help="The plan.json of a search.")],
    task: TaskOption = None,
    text: Annotated[list[str] | None, typer.Option("--text", help="Text to go on with. Repeatable.")] = None,
    samples: TaskSamples = 200,
    shots: ShotsOption = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="Tokens to go on with a text.")] = 64,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
) -> None:
    """Evaluate tasks, or go on with texts, with and without a plan.

    Example: [bold]antiphase calibrate apply MODEL --plan runs/search/plan.json --task sst-5.yaml --output runs/apply[/]
    """
    from antiphase.studies.calibration import ApplyRequest, apply

    console = _console()
    request = ApplyRequest(
        name=model, plan=plan, tasks=task or [], texts=text or [], samples=samples, shots=shots,
        max_new_tokens=max_new_tokens, seed=seed, device=device,
    )  # fmt: skip
    record = apply(request, output, say=_say(console))
    _finish(console, record, output)


@calibrate_app.command("study")
def calibrate_study(
    model: CausalModel,
    output: OutputOption,
    task: TaskOption = None,
    samples: TaskSamples = 200,
    shots: ShotsOption = None,
    only: Annotated[
        str | None,
        typer.Option(
            "--only", help="Some of the experiments, e.g. alpha,beta,controls; none: all.", show_default=False
        ),
    ] = None,
    layers: Annotated[
        str | None, typer.Option("--layers", help="0-based, e.g. 2-9 or 2,4,6; none: all.", show_default=False)
    ] = None,
    score: Annotated[str, typer.Option("--score", help="What chooses heads: metric or probability.")] = "metric",
    held_out: Annotated[float, typer.Option("--held-out", help="Share of the samples that judges the choice.")] = 0.5,
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

    console = _console()
    request = StudyRequest(
        name=model, tasks=task or [], samples=samples, shots=shots, parts=only.split(",") if only else PARTS,
        layers=None if layers is None else _ranges("--layers", layers), score=score, held_out=held_out,
        alpha=alpha, beta=beta, mode=mode, seed=seed, device=device,
    )  # fmt: skip
    with _count_progress(console, "settings") as report:
        record = study(request, output, resume=resume, say=_say(console), report=report)
    _finish(console, record, output)


@app.command()
def look(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Local folder or Hub name of a model.")],
    output: NewOutputOption,
    text: Annotated[str, typer.Option("--text", help="What to look at.")],
    length: Annotated[int, typer.Option("--length", help="Most tokens; the page grows with their square.")] = 256,
    device: DeviceOption = "auto",
) -> None:
    """Look at one text through every layer and head: a record, and an interactive page that opens offline.

    Example: [bold]antiphase look runs/demo/differential-seed0 --text "The cat sat." --output runs/look[/]
    """
    from antiphase.report.look_page import write_look
    from antiphase.report.terminal import print_summary
    from antiphase.studies.look import LookRequest
    from antiphase.studies.look import look as run_look

    console = _console()
    record = run_look(LookRequest(name=model, text=text, length=length, device=device), output)
    print_summary(record, console)
    page = write_look([record], output / "report.html")
    console.print(f"record: {output / 'record.json'}\npage:   {page}", highlight=False)


@app.command()
def classify(
    output: OutputOption,
    train: Annotated[list[str], typer.Option("--train", help="File, folder or Hub dataset of labelled text.")],
    test: Annotated[
        list[str] | None, typer.Option("--test", help="The official test part; none: a tenth is held out.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            help="cnn, rnn, birnn, lstm, bilstm, transformer, differential, differential_v2; several by commas.",
            show_default="cnn",
        ),
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", "--seed", help="Comma-separated, e.g. 0,1,2.")] = "0",
    folds: Annotated[int | None, typer.Option("--folds", help="Cross-validation, e.g. 10.", show_default=False)] = None,
    labels: Annotated[str, typer.Option("--labels", help="Of COARSE:fine labels: coarse or fine.")] = "coarse",
    text_field: Annotated[str | None, typer.Option("--text-field", help="Column that holds the text.")] = None,
    label_field: Annotated[str | None, typer.Option("--label-field", help="Column that holds the label.")] = None,
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", help="words, characters, bpe, unigram, or a folder or Hub name.")
    ] = "words",
    vocabulary: Annotated[int, typer.Option("--vocabulary", help="Entries of a trained tokenizer, at most.")] = 30_000,
    least_count: Annotated[
        int | None,
        typer.Option("--min-count", help="How often a word must occur to be known; none: 2, with vectors 1."),
    ] = None,
    word_vectors: Annotated[
        str | None, typer.Option("--word-vectors", help="Text file of pretrained word vectors.", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="FIELD=VALUE or MODEL.FIELD=VALUE, e.g. cnn.dropout=0.4. Repeatable."),
    ] = None,
    resume: ResumeOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Train and test text classifiers: the models that led to differential attention, side by side.

    Example: [bold]antiphase classify --model cnn,bilstm --train train.txt --test test.txt --output runs/trec[/]
    """
    from antiphase.studies.classify import ClassifyRequest
    from antiphase.studies.classify import classify as run_classify

    console = _console()
    request = ClassifyRequest(
        train=train, test=test or [], models=[name.strip() for part in model or ["cnn"] for name in part.split(",")],
        seeds=_numbers("--seeds", seeds, int), folds=folds, labels=labels, text_field=text_field,
        label_field=label_field, tokenizer=tokenizer, vocabulary=vocabulary, least_count=least_count,
        word_vectors=word_vectors, settings=settings or [], device=device,
    )  # fmt: skip
    with _share_progress(console, "runs") as report:
        record = run_classify(request, output, resume=resume, say=_say(console), report=report)
    _finish(console, record, output)
    console.print(f"model:  {output} (from {record.values['best']})", highlight=False)


@app.command()
def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of antiphase classify, or any text classifier.")],
    text: Annotated[list[str] | None, typer.Option("--text", help="Text to classify. Repeatable.")] = None,
    file: Annotated[
        list[str] | None, typer.Option("--file", help="One text a line, or a table with a text column. Repeatable.")
    ] = None,
    text_field: Annotated[str | None, typer.Option("--text-field", help="Column that holds the text.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a text in place of the table.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder for a record; must be new or empty.", show_default=False)
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Classify new texts: the label and the probability of each.

    Example: [bold]antiphase predict runs/trec --text "Who was Galileo ?"[/]
    """
    import json

    from antiphase.report.terminal import print_summary
    from antiphase.studies.predict import PredictRequest
    from antiphase.studies.predict import predict as run_predict

    console = _console()
    request = PredictRequest(name=run, texts=text or [], files=file or [], text_field=text_field, device=device)
    record = run_predict(request, output)
    if as_json:
        for row in record.values["rows"]:
            typer.echo(json.dumps(row, ensure_ascii=False))
    else:
        print_summary(record, console)


@app.command()
def tokenize(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to cut.")],
    data: Annotated[
        list[str] | None,
        typer.Option("--data", help="Text that tokenizers learn from; none: TEXT itself. Repeatable."),
    ] = None,
    text_field: Annotated[str | None, typer.Option("--text-field", help="Column that holds the text.")] = None,
    tokenizer: Annotated[
        list[str] | None,
        typer.Option("--tokenizer", help="words, characters, bpe, unigram, a folder or Hub name; none: the four."),
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option("--vocabulary", help="Entries of a trained tokenizer, at most.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder for a record; must be new or empty.", show_default=False)
    ] = None,
) -> None:
    """Show the words, pieces and ids of a text, and pieces per word, for several tokenizers.

    Example: [bold]antiphase tokenize "The harbour lay quiet." --data book.txt[/]
    """
    from antiphase.report.terminal import print_summary
    from antiphase.studies.tokenize import TokenizeRequest
    from antiphase.studies.tokenize import tokenize as run_tokenize

    console = _console()
    request = TokenizeRequest(
        text=text, data=data or [], text_field=text_field, tokenizers=tokenizer or [], vocabulary=vocabulary
    )
    record = run_tokenize(request, output, say=_say(console))
    print_summary(record, console)


class Target(StrEnum):
    """Formats that ``antiphase convert`` writes."""

    antiphase = "antiphase"
    llama = "llama"
    diffllama = "diffllama"


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Local folder or Hub name of a model.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Folder to make.")],
    to: Annotated[Target, typer.Option("--to", help="Format of the result.")] = Target.antiphase,
    attention_type: Annotated[
        str | None,
        typer.Option("--attention-type", help="differential_v2: upcycle a softmax model.", show_default=False),
    ] = None,
    control: Annotated[
        bool, typer.Option("--control", help="Upcycle to softmax attention of the same capacity.")
    ] = False,
) -> None:
    """Convert a checkpoint: Llama, Mistral, DiffLlama and antiphase, or a softmax model into differential V2.

    Example: [bold]antiphase convert LLAMA_FOLDER runs/v2 --attention-type differential_v2[/]
    """
    from antiphase.models.checkpoints import convert as run_convert

    console = _console()
    config = run_convert(source, target, to=to.value, attention_type=attention_type, control=control, say=_say(console))
    kind = getattr(config, "attention_type", None)
    console.print(f"written: {target} ({config.model_type}{f', {kind} attention' if kind else ''})", highlight=False)


class Benchmark(StrEnum):
    """What ``antiphase benchmark`` can time."""

    attention = "attention"
    model = "model"
    calibration = "calibration"


@app.command()
def benchmark(
    subject: Annotated[Benchmark, typer.Argument(help="The attention operator, whole models, or calibration.")],
    output: NewOutputOption,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and rounds: two minutes.")] = False,
    seed: SeedOption = 0,
) -> None:
    """Time differential attention beside softmax attention of equal size and other people's code, in paired runs.

    Example: [bold]antiphase benchmark attention --quick --output runs/benchmark[/]
    """
    from antiphase.benchmarks.attention import benchmark_attention
    from antiphase.benchmarks.calibration import benchmark_calibration
    from antiphase.benchmarks.model import benchmark_model
    from antiphase.studies.single import check_empty
    from antiphase.training.run_folder import make_folder

    check_empty(output)
    make_folder(output)
    console = _console()
    runs = {
        Benchmark.attention: benchmark_attention,
        Benchmark.model: benchmark_model,
        Benchmark.calibration: benchmark_calibration,
    }
    record = runs[subject](quick=quick, seed=seed, say=_say(console))
    record.save(output)
    _finish(console, record, output)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders or files of records.")],
    output: Annotated[Path, typer.Option("--output", help="The HTML file to write.")],
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Folder for the figures as PNG.", show_default=False)
    ] = None,
) -> None:
    """Draw one self-contained page from records; an interactive one if all are of antiphase look.

    Example: [bold]antiphase report runs/demo --output demo.html[/]
    """
    from antiphase.records import Record
    from antiphase.report.figures import save_figures
    from antiphase.report.html import write_report
    from antiphase.report.look import is_look

    records = [Record.load(path) for path in runs]
    if all(is_look(record) for record in records):
        from antiphase.report.look_page import write_look

        write_look(records, output)
    else:
        write_report(records, output)
    if figures is not None:
        for path, record in zip(runs, records, strict=True):
            save_figures(record, figures / path.stem if len(records) > 1 else figures)
    _console().print(f"written: {output}")


@app.command()
def env() -> None:
    """Versions and hardware, for a bug report.

    Example: [bold]antiphase env[/]
    """
    import torch

    from antiphase.records import environment

    console = _console()
    for name, value in environment().items():
        console.print(f"{name:>12}  {value}", highlight=False)
    console.print(f"{'cuda':>12}  {torch.version.cuda or 'none'}", highlight=False)


@app.callback(invoke_without_command=True)
def _global(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from antiphase import __version__

        typer.echo(__version__)
        raise typer.Exit


USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
"""Click's exception for a flag that is missing or malformed. Typer brings click or its own copy, by its version; both
have this line of descent."""


def main() -> None:
    """Entry point: bad input is one sentence and exit code 2, an interruption that left a checkpoint is 130."""
    try:
        code = app(standalone_mode=False, prog_name="antiphase")
    except InputError as error:
        _fail(str(error), 2)
    except Interrupted as error:
        _fail(f"{error}; add --resume to the same command to go on", 130)
    except USAGE_ERROR as error:
        _fail_usage(error)
    if code == 130:  # Ctrl-C where nothing was at work that a checkpoint could save
        _fail("stopped", 130)
    sys.exit(code or 0)


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"antiphase: {' '.join(message.splitlines())}\n")
    sys.exit(code)


def _fail_usage(error: Any) -> NoReturn:
    """One sentence for a flag that is missing or malformed; nothing more where the help was printed already."""
    message = " ".join(error.format_message().split()).rstrip(".")
    if not message:
        sys.exit(2)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "antiphase"
    _fail(f"{message[0].lower()}{message[1:]}; see {command} --help", 2)


def _preset(
    name: str,
    settings: list[str] | None,
    data: list[str] | None,
    validation: list[str] | None,
    seeds: str | None,
    device: str | None,
) -> Preset:
    from antiphase.config import load_preset

    return load_preset(name, _overrides(settings, seeds, device), data=data or [], validation=validation or [])


def _overrides(settings: list[str] | None, seeds: str | None, device: str | None) -> list[str]:
    """All flags that change a preset, as KEY=VALUE."""
    overrides = list(settings or [])
    if seeds is not None:
        overrides.append(f"compare.seeds={_numbers('--seeds', seeds, int)}")
    if device is not None and device != "auto":
        overrides.append(f"training.device={device}")
    return overrides


def _numbers(flag: str, text: str, kind: Callable[[str], Any]) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} must be comma-separated numbers, got {text!r}") from None


def _ranges(flag: str, text: str) -> list[int]:
    """``2-4,7`` as [2, 3, 4, 7]."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            found += range(int(first), int(last) + 1) if dash else [int(first)]
        except ValueError:
            raise InputError(f"{flag} must be numbers and ranges such as 2-9 or 2,4,6, got {text!r}") from None
    if not found:
        raise InputError(f"{flag} names nothing: {text!r}")
    return found


def _console(*, quiet: bool = False) -> Console:
    """The terminal; only our own progress bars appear in it. ``quiet``: of several processes one speaks."""
    from rich.console import Console
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    return Console(quiet=quiet)


def _say(console: Console) -> Callable[[str], None]:
    return lambda message: console.print(f"[dim]{message}[/]")


def _describe(console: Console, preset: Preset) -> None:
    compare, run = preset.compare, preset.run
    console.print(
        f"{' and '.join(compare.arms)}, seeds {', '.join(map(str, compare.seeds))}: "
        f"{run.training.steps:,} steps of {run.training.batch_size} × {run.data.sequence_length} tokens each",
        highlight=False,
    )


@contextmanager
def _job_progress(console: Console, preset: Preset) -> Iterator[Callable[[Job, int, dict[str, Any]], None]]:
    """A bar for each run of a study."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    steps = preset.run.training.steps
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[loss]}"), console=console) as progress:
        bars: dict[str, Any] = {}

        def show(job: Job, step: int, values: dict[str, Any]) -> None:
            if job.name not in bars:
                bars[job.name] = progress.add_task(job.name, total=steps, loss="")
            loss = f"loss {values['loss']:.3f}" if values.get("loss") is not None else ""
            progress.update(bars[job.name], completed=step, loss=loss)

        yield show


@contextmanager
def _run_progress(console: Console, steps: int) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """One bar, with the last loss and accuracy."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=steps)
        shown: dict[str, float] = {}

        def show(step: int, values: Mapping[str, Any]) -> None:
            if values.get("loss") is not None:
                shown["loss"] = values["loss"]
            found = values.get("evaluation", {})
            shown.update(
                {f"held-out {name}": found[name] for name in ("loss", "accuracy") if found.get(name) is not None}
            )
            text = ", ".join(f"{name} {value:.3f}" for name, value in shown.items())
            progress.update(bar, completed=step, description=text)

        yield show


@contextmanager
def _count_progress(console: Console, words: str) -> Iterator[Callable[[int, int], None]]:
    """One bar over things that are done one after the other."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(words), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:

        def show(done: int, count: int) -> None:
            if not progress.tasks:  # what cannot be begun shows no bar
                progress.add_task(words, total=count)
            progress.update(progress.tasks[0].id, completed=done, total=count)

        yield show


@contextmanager
def _share_progress(console: Console, words: str) -> Iterator[Callable[[float, int], None]]:
    """One bar over things that are done one after the other, each of them bit by bit."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:

        def show(done: float, count: int) -> None:
            if not progress.tasks:  # what cannot be begun shows no bar
                progress.add_task(words, total=count)
            text = f"{words}: {int(done)} of {count} done"
            progress.update(progress.tasks[0].id, completed=done, total=count, description=text)

        yield show


def _finish(console: Console, record: Record, output: Path) -> None:
    """The table in the terminal, and the page where there is something to draw."""
    from antiphase.report.html import write_report
    from antiphase.report.terminal import print_summary

    print_summary(record, console)
    page = write_report([record], output / "report.html")
    console.print(f"record: {output / 'record.json'}\npage:   {page}", highlight=False)


if sys.platform != "win32":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `antiphase env | head` ends quietly
