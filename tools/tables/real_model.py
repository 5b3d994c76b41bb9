"""Tables of docs/real-model.md, from the records in records/real-model."""

from __future__ import annotations

import statistics
from pathlib import Path

from scipy.stats import pearsonr

from antiphase.base.records import Record
from antiphase.lab.pages.summary import main_tables
from antiphase.lab.statistics.intervals import mean_interval
from antiphase.lab.studies.calibrate.confirm import Confirm, Outcome

RECORDS = Path(__file__).resolve().parents[2] / "records" / "real-model"
STUDY = RECORDS.parent / "programme" / "f"
SPLITS = (0, 1, 2)
"""Seeds of the splits of the samples in it."""
LAYERS = ((0, 0), (1, 2), (3, 9), (10, 10), (11, 11), (12, 29))
"""First and last layer of the rows of ``sinks``."""

Rows = list[list[str]]


def sinks() -> Rows:
    """Where attention goes by groups of layers: on the text of the picture, and on essays."""
    text = Record.load(RECORDS / "text-sinks.json").values["rows"]
    essays = Record.load(RECORDS / "probe.json").values["layers"]
    table = [
        [
            "Layers", "Text: first token", "Other sinks", "Sinks of most heads in all of these layers",
            "Essays: first token", "Other sinks",
        ]
    ]  # fmt: skip
    for first, last in LAYERS:
        own, long = ([row for row in rows if first <= row["layer"] <= last] for rows in (text, essays))
        named = [{(token["position"], token["token"]) for token in row["tokens"]} for row in own]
        common = sorted(set.intersection(*named))
        words = ", ".join(f"“{word.strip() or repr(word)}” ({position})" for position, word in common) or "–"
        shares = [
            f"{100 * statistics.fmean(row[name] for row in rows):.0f} %"
            for rows in (own, long)
            for name in ("first_share", "sink_share")
        ]
        table.append([str(first) if first == last else f"{first} to {last}", *shares[:2], words, *shares[2:]])
    return table


def knocked_out() -> Rows:
    """Layers in which the answer gets attention or its loss counts: shares, and the log-probability without it."""
    found = [
        row for row in Record.load(RECORDS / "allocation.json").values["rows"]
        if row["trained"] and row["depth"] is None
    ]  # fmt: skip
    table = [["Layer", "Attention on the answer", "Its part of the output", "Without the answer, nats", "95 %"]]
    for row in found:
        span, change = row["spans"]["answer"], row["knockout"]["answer"]
        if row["layer"] == "all" or span["share"] >= 0.1 or change["change"] <= -0.1:
            low, high = change["interval"]
            table.append(
                [
                    str(row["layer"]), f"{100 * span['share']:.0f} %", f"{100 * span['contribution']:.0f} %",
                    f"{change['change']:+.2f}", f"{low:+.2f} to {high:+.2f}",
                ]
            )  # fmt: skip
    return table


def confirmed() -> Rows:
    """What the heads that study F kept gain on its first split, by measure and task."""
    return measured("heads", folder=STUDY)


def splits() -> Rows:
    """By split of the samples of study F: heads alone and together, beside random ones, and whether effects repeat."""
    table = [["Split", "Heads kept", "Gain alone", "Kept heads, nats", "Kept heads, points", "on the controls' texts",
              "random heads there: mean, range", "Plain accuracy, points",
              *(f"r with split {seed}" for seed in SPLITS[:-1])]]  # fmt: skip
    before: list[list[float]] = []
    for seed in SPLITS:
        path = STUDY / f"heads{f'-seed{seed}' if seed else ''}.json"
        if not path.is_file():
            continue
        found = Confirm.of(Record.load(path))
        share, kept = ({row.of: row for row in found.likelihood}[name] for name in ("share that gains", "kept heads"))
        (plain,) = (row for row in found.secondary if (row.measure, row.task) == ("accuracy", None))
        random = [100 * row.gain for row in found.controls if row.setting.startswith("random heads")]
        (beside,) = (row.gain for row in found.controls if row.setting == "kept heads")
        changes = [row.change for row in found.tried]
        table.append([
            str(seed), f"{sum(map(len, found.heads.values()))} of {len(changes)}",
            f"{100 * share.value:.0f} %",
            f"{kept.value:+.3f} [{' to '.join(f'{end:+.3f}' for end in kept.interval or ())}]",
            _gain(found.primary), _points(beside),
            f"{statistics.fmean(random):+.2f}, {min(random):+.2f} to {max(random):+.2f}", _gain(plain),
            *(_correlation(changes, other) for other in before), *["–"] * (len(SPLITS) - 1 - len(before)),
        ])  # fmt: skip
        before.append(changes)
    return table


def _gain(row: Outcome) -> str:
    return f"{_points(row.gain)} [{' to '.join(map(_points, row.gain_interval))}]"


def _correlation(own: list[float], other: list[float]) -> str:
    """With Fisher's 95 % interval."""
    found = pearsonr(own, other)
    return f"{found.statistic:.2f} [{' to '.join(f'{end:.2f}' for end in found.confidence_interval())}]"


FORMS = {"softmax": "as it is", "control": "control of V2", "differential_v2": "V2"}
"""The arms of continued training in words."""
TRAINED = {"lambda": "λ alone", "lora": "LoRA and λ"}
"""Values of ``training.trained`` in words, for runs of V2."""


def continued() -> Rows:
    """Continued training of three forms: time of a step, memory, and held-out loss at the beginning and at the end."""
    steps = {row["form"]: row for row in Record.load(RECORDS / "steps.json").values["rows"]}
    runs = Record.load(RECORDS / "upcycle.json").values["runs"]
    named = [(FORMS[run["arm"]], "all weights", run["arm"], run) for run in runs]
    named += [
        (FORMS["differential_v2"], words, name, Record.load(RECORDS / f"continued-{name}.json").values)
        for name, words in TRAINED.items()
    ]
    plain = next(run["by_sequence"] for run in runs if run["arm"] == "softmax")
    table = [
        [
            "Form", "Trained", "Parameters", "Rate", "Step / as it is", "Peak memory", "Held-out loss before", "after",
            "minus as it is, 95 % over sequences",
        ]
    ]  # fmt: skip
    for form, trained, name, run in named:
        step = steps[name]
        low, high = step["quartiles"]
        table.append(
            [
                form, trained, f"{step['trained']:,}", f"{run['learning_rate']:g}",
                f"{step['ratio']:.2f} [{low:.2f}–{high:.2f}]" if name != "softmax" else "1",
                f"{run['peak_memory'] / 2**30:.1f} GiB", f"{run['curve'][0]['loss']:.3f}",
                f"{run['final']['loss']:.3f}", _difference(run.get("by_sequence"), plain),
            ]
        )  # fmt: skip
    return table


def _difference(own: list[float] | None, plain: list[float]) -> str:
    """The mean difference of losses by sequence, with its interval; nothing of the plain model itself."""
    if own is None or own == plain:
        return "–"
    differences = [one - other for one, other in zip(own, plain, strict=True)]
    interval = mean_interval(differences)
    assert interval is not None
    return f"{statistics.fmean(differences):+.4f} [{interval[0]:+.4f} to {interval[1]:+.4f}]"


def encoder() -> Rows:
    """Accuracy of the encoder's embeddings by labelled set, and what calibration changes, in points."""
    head = ["Set", "Tokens, mean", "α / N there", "Heads that change the number right", "Texts judged", "Plain",
            "Kept heads", "Gain in points, 95 %", "Better / worse", "p", "Random heads: mean, range",
            "All heads"]  # fmt: skip
    table, record = [head], Record.load(RECORDS / "minilm.json")
    for found in record.values["sets"]:
        rows = {row["setting"]: row for row in found["rows"]}
        own = rows.get("kept heads")
        random = [100 * row["gain"] for name, row in rows.items() if name.startswith("random heads")]
        table.append(
            [
                found["data"], f"{found['tokens']:.0f}", f"{100 * record.config['alpha'] / found['tokens']:.0f} %",
                f"{found['changed']} of {len(rows['all heads']['heads'])}", f"{found['judged']:,}",
                f"{100 * found['plain'] / found['judged']:.1f} %",
                f"{len(found['kept'])} of {len(rows['all heads']['heads'])}",
                "–" if own is None else f"{_points(own['gain'])} [{', '.join(map(_points, own['interval']))}]",
                "–" if own is None else f"{own['better']} / {own['worse']}", "–" if own is None else f"{own['p']:.2g}",
                f"{statistics.fmean(random):+.2f}, {min(random):+.2f} to {max(random):+.2f}" if random else "–",
                _points(rows["all heads"]["gain"]),
            ]
        )  # fmt: skip
    return table


def _points(gain: float) -> str:
    return f"{100 * gain:+.2f}"


def needles() -> Rows:
    """Retrieval of the trained model by depth."""
    (_, state, *head), *rows = measured("needles")
    assert state == ""
    return [head, *(cells for _, kind, *cells in rows if kind == "trained")]


def measured(name: str, index: int = 0, *, folder: Path = RECORDS) -> Rows:
    """A table of the page of one measurement."""
    made = main_tables(Record.load(folder / f"{name}.json"))[index]
    return [[column.name for column in made.columns], *made.text()]
