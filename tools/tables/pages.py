"""Rewrite the tables of README.md and of the pages in docs from the records in records.

    python -m tools.tables.pages

A table follows a line ``<!-- table NAME -->`` and ends at the next empty line.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from rich.console import Console

from antiphase.base.records import Record
from antiphase.lab.lineage.commands.classify import ClassifierMean, Classify
from antiphase.lab.lineage.commands.translate import tables as translation
from antiphase.lab.lineage.studies.dependency.presentation import accuracies
from antiphase.lab.pages.benchmarks import ratio_text
from antiphase.lab.pages.tables import Table
from antiphase.lab.studies.compare.reading import comparison_of
from antiphase.lab.studies.reproduce.presentation import claims
from antiphase.lab.studies.tune import Tune
from antiphase.lab.studies.tune.presentation import end_of, threshold_of
from experiments import programme
from tools.tables import attack as attack_tables
from tools.tables import cluster as cluster_tables
from tools.tables import evidence as evidence_tables
from tools.tables import forms as forms_tables
from tools.tables import gpu as gpu_tables
from tools.tables import layer as layer_tables
from tools.tables import operator as operator_tables
from tools.tables import real_model as real_model_tables
from tools.tables import reproduction as reproduction_tables
from tools.tables import serving as serving_tables
from tools.tables import suites as suites_tables
from tools.tables import zoo as zoo_tables
from tools.tables.markdown import markdown
from tools.tables.operator import RATIO_HEAD

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "huggingface",
            "performance",
            "calibration-results",
            "results",
            "reproduction",
            "line",
            "studies",
            "pairs",
            "real-model",
            "reliability",
            "cluster",
            "large-text",
            "serving",
            "ablations",
            "why",
        )
    ),
)


def main() -> None:
    """Rewrite the pages in place and print which ones changed."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for name in PAGES:
        path = ROOT / name
        before = path.read_text(encoding="utf-8")
        after = with_tables(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
        Console().print(f"{name}: {'unchanged' if after == before else 'written'}")


def with_tables(page: str) -> str:
    """The page with every marked table updated from the records."""
    return re.sub(
        r"(?m)^<!-- table (\S+) -->\n(?:\|.*\n)*", lambda found: f"{found[0].splitlines()[0]}\n{table(found[1])}", page
    )


def table(name: str) -> str:
    """One table as Markdown."""
    return markdown(TABLES[name]())


@cache
def record(name: str) -> Record:
    """A record, given the name of its file."""
    return Record.load(ROOT / f"records/{name}.json")


def models(chosen: Sequence[str] | None = None) -> list[list[str]]:
    """Complete models; only the rows named in ``chosen``, or all."""
    rows = record("benchmark-model").values["rows"]
    lengths = sorted({row["length"] for row in rows})
    by_words: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: lengths.index(row["length"])):
        by_words.setdefault(f"{row['task']}: {row['subject']} / {row['baseline']}", []).append(ratio_text(row))
    head = [RATIO_HEAD, *(f"N = {length:,}" for length in lengths)]
    return [head, *([words, *by_words[words]] for words in chosen or by_words)]


def speed() -> list[list[str]]:
    """The table of the README: medians of V1 / softmax as PyTorch computes it, by machine, each where V1 does worst."""
    cpus = {"AVX-512": "benchmark-attention", "AVX2": "processors/avx2-attention"}
    found = [["4,096 tokens, forward and backward", "V1 / softmax"]]
    for name, source in cpus.items():
        cell = operator_tables.ratio(operator_tables.BOTH, "float32", 4096, "V1", "softmax", name=source)
        found.append([f"AMD EPYC with {name}, two cores, fp32", cell])
    measured = {row[1]: row[2] for row in gpu_tables.operator() if row[0] == "V1"}
    found.append(["NVIDIA H200, bf16", measured["cuDNN, equal size"]])
    return [[cell.split(" [")[0] for cell in row] for row in found]


def short_models() -> list[list[str]]:
    """The short table of docs/performance.md."""
    ours, sdpa = "antiphase differential", "antiphase softmax, SDPA"
    return models([
        f"training step: {ours} / {sdpa}", f"training step: {ours} / antiphase softmax",
        f"training step: {ours}_v2 / {sdpa}", f"training step: {ours} / DiffLlama",
        "training step: Llama, antiphase / Llama", f"tokens generated: {ours} / {sdpa}",
        f"tokens generated: {ours}_v2 / {sdpa}", f"tokens generated: {ours} / DiffLlama",
    ])  # fmt: skip


def percent(share: float) -> str:
    """For example ``25.0 %`` for 0.25."""
    return f"{100 * share:.1f} %"


def points(gain: float, interval: Sequence[float]) -> str:
    """A gain with its interval, in percentage points."""
    return f"{100 * gain:+.1f} [{100 * interval[0]:+.1f} to {100 * interval[1]:+.1f}]"


def search_test() -> list[list[str]]:
    """Results of the search in a model with planted sinks."""
    found = [["method", "heads found", "evaluations", "held out, before → after", "gain in points, 95 %"]]
    for row in record("planted-sinks").values["methods"]:
        heads = ", ".join(f"{layer}.{head}" for layer, maps in row["heads"].items() for head in maps)
        scores = f"{percent(row['held_out_before'])} → {percent(row['held_out_after'])}"
        gain = points(row["held_out_gain"], row["held_out_gain_interval"])
        found.append([row["method"], heads, str(row["evaluations"]), scores, gain])
    return found


def calibration_times() -> list[list[str]]:
    """Times of calibrated and plain attention, with all heads calibrated."""
    rows = record("benchmark-calibration").values["rows"]
    lengths = sorted({row["length"] for row in rows})
    cells: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: lengths.index(row["length"])):
        mode = row["subject"].removeprefix("calibrated").removeprefix(", ")
        cells.setdefault(f"{row['task']}{f', {mode}' if mode else ''}", []).append(ratio_text(row))
    return [
        [RATIO_HEAD, *(f"N = {length:,}" for length in lengths)],
        *([words, *found] for words, found in cells.items()),
    ]


def calibration_memory() -> list[list[str]]:
    """Peak memory of a calibrated layer, and of probing."""
    found = [["peak memory beyond the inputs, MiB", "tokens", "plain", "with", "ratio"]]
    rows = record("benchmark-calibration").values["memory"]
    for plain, other in zip(rows[::2], rows[1::2], strict=True):
        sizes = [row["bytes"] / 2**20 for row in (plain, other)]
        words = f"{plain['task']}, {other['scheme']}"
        found.append([words, f"{plain['length']:,}", *(f"{size:.0f}" for size in sizes), f"{sizes[1] / sizes[0]:.2f}"])
    return found


def _split(found: Classify) -> str:
    assert found.data is not None, "the record of a whole classification"
    return found.data.split


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def classifiers() -> list[list[str]]:
    """Test accuracy of every classifier on every data set."""
    names = {name: ROOT / f"records/classify-{name.lower()}.json" for name in PUBLISHED}
    records = {name: Record.load(path) for name, path in names.items() if path.is_file()}
    results = {name: Classify.of(found) for name, found in records.items()}
    rows = {name: {row.model: row for row in found.models} for name, found in results.items()}
    found = [["test accuracy, %", *records]]
    found.append(["*Kim's CNN-rand as published*", *(PUBLISHED[name] for name in records)])
    for model in dict.fromkeys(model for by_model in rows.values() for model in by_model):
        chosen = [rows[name].get(model) for name in records]
        found.append([model, *("–" if row is None else share_and_interval(row) for row in chosen)])
        unseen = ["–" if row is None else _share(row.unseen_accuracy) for row in chosen]
        found.append([f"{model}, unseen texts", *unseen])
    found.append(["tested on", *(_split(found) for found in results.values())])
    return found


def translated() -> list[list[str]]:
    """Scores of every translator."""
    return of_report("translate", translation.models)


def learning_rates(name: str) -> list[list[str]]:
    """Every arm at every learning rate of a grid: first-query accuracy, its range over several seeds, held-out loss.

    Shows medians, or the number of seeds that learned if only some did.
    """
    tuned = Tune.read(record(name))
    assert tuned is not None, name
    found = [["learning rate", *tuned.chosen]]
    for rate in sorted({row.learning_rate for row in tuned.rates}):
        cells = [f"{rate:.1e}".replace(".0e", "e").replace("e-0", "e-")]
        for arm, best in tuned.chosen.items():
            (row,) = [row for row in tuned.rates if (row.arm, row.learning_rate) == (arm, rate)]
            accuracy, loss = end_of(tuned, row, threshold_of(record(name)))
            accuracy = accuracy if isinstance(accuracy, str) else f"{100 * accuracy:.1f} %"
            if row.seeds > 1:
                accuracy += " [{:.1f}, {:.1f}]".format(*(100 * end for end in row.accuracy_range or []))
            text = f"{accuracy}; {loss if isinstance(loss, str) else f'{loss:.3f}'}"
            cells.append(f"**{text}**" if rate == best else text)
        found.append(cells)
    return found


def demo_at_a_glance() -> list[list[str]]:
    """The first table of docs/results.md: numbers are from one seed unless the row says otherwise."""
    found = comparison_of(record("demo"))
    arms = found.arms
    runs = {arm: sorted(found.runs_of(arm), key=lambda run: run.seed or 0) for arm in arms}
    chosen = [row for row in found.allocation if row.is_last]

    def looked(arm: str, trained: bool) -> float:
        return statistics.fmean(row.spans["answer"].share for row in chosen if (row.arm, row.trained) == (arm, trained))

    def row(words: str, cell: Callable[[str], str]) -> list[str]:
        return [words, *(cell(arm) for arm in arms)]

    def passed(arm: str) -> list[int | None]:
        return [run.passes for run in runs[arm]]

    guess = percent(found.guess_rate or 0.0)
    return [
        ["", *arms],
        row("training steps until half the answers are right, by seed",
            lambda arm: ", ".join("never" if step is None else f"{step:,}" for step in passed(arm))),
        row(f"right answers at the end, by seed (guessing: {guess})",
            lambda arm: ", ".join(percent(run.final.accuracy or 0.0) for run in runs[arm])),
        row("share of attention on the answer, mean over seeds (untrained)",
            lambda arm: f"{percent(looked(arm, True))} ({percent(looked(arm, False))})"),
    ]  # fmt: skip


def of_report(name: str, make: Callable[[Record], Table | None]) -> list[list[str]]:
    """A table of a record's report."""
    made = make(record(name))
    if made is None:
        raise ValueError(f"the record {name} has no such table")
    return [[column.name for column in made.columns], *made.text()]


def share_and_interval(row: ClassifierMean) -> str:
    """For example ``90.2 [89.0–91.4]``."""
    low, high = (f"{100 * bound:.1f}" for bound in row.interval)
    return f"{100 * row.accuracy:.1f} [{low}–{high}]"


PUBLISHED = {"TREC": "91.2", "SUBJ": "89.6", "MPQA": "83.4", "CR": "79.8", "SST-1": "45.0, with phrase labels"}
"""Kim (2014, 1408.5882), table 2, first row, in per cent."""

TABLES: dict[str, Callable[[], list[list[str]]]] = {
    "serving": serving_tables.throughput,
    "steps-of-arms": forms_tables.steps,
    "shared-maps": forms_tables.shared_maps,
    "suites": suites_tables.counts,
    "zoo": zoo_tables.counts,
    "zoo-exceptions": zoo_tables.exceptions,
    "families": zoo_tables.families,
    "families-short": lambda: zoo_tables.families(short=True),
    "operator-short": operator_tables.short,
    "speed": speed,
    "memory": operator_tables.memory,
    "models-short": short_models,
    "search-test": search_test,
    "calibration-times": calibration_times,
    "calibration-memory": calibration_memory,
    "classifiers": classifiers,
    "translation": translated,
    "gpu": gpu_tables.operator,
    "gpu-models": gpu_tables.models,
    "gpu-pairs": gpu_tables.pairs,
    "gpu-controls": gpu_tables.controls,
    "processors": operator_tables.by_processor,
    "steps": operator_tables.steps,
    "shares": operator_tables.shares,
    "dependency": lambda: [
        [row[place] for place in (0, 1, 3, 5, 7, 8, 10, 11)] for row in of_report("dependency", accuracies)
    ],
    "demo-short": demo_at_a_glance,
    "demo-layers": layer_tables.demo_layers,
    "lambdas": layer_tables.lambdas,
    "tiny-learning-rates-today": lambda: learning_rates("reproduce-tiny-rates"),
    "tiny-learning-rates-longer": lambda: learning_rates("reproduce-tiny-longer"),
    "claims": lambda: of_report("reproduce/reproduce", claims),
    "pairs-by-seed": reproduction_tables.pairs_by_seed,
    "continued": reproduction_tables.continued,
    **evidence_tables.TABLES,
    **programme.on_pages(),
    "attack": attack_tables.parts,
    "sharded-step": cluster_tables.sharded_step,
    "text-memory": cluster_tables.text_memory,
    "real-model-sinks": real_model_tables.sinks,
    "real-model-continued": real_model_tables.continued,
    "real-model-encoder": real_model_tables.encoder,
    "real-model-knockout": real_model_tables.knocked_out,
    "real-model-needles": real_model_tables.needles,
    "real-model-splits": real_model_tables.splits,
    "real-model-confirm": real_model_tables.confirmed,
}

if __name__ == "__main__":
    main()
