"""Tables of docs/real-model.md, from the records in records/real-model."""

from __future__ import annotations

import statistics
from pathlib import Path

from antiphase.base.records import Record
from antiphase.lab.pages.summary import main_tables
from antiphase.lab.statistics.intervals import mean_interval, paired_interval, wilson_interval
from experiments.real_model import SPLITS

RECORDS = Path(__file__).resolve().parents[2] / "records" / "real-model"
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
    """What the confirmatory study found; the primary measure also without the task whose maps have hardly any sinks."""
    head, primary, *rows = measured("confirm")
    values = Record.load(RECORDS / "confirm.json").values
    own = [
        row for row in values["secondary"]
        if row["measure"] == values["primary"]["measure"] and row["task"] in {*values["searched"]} - {"mpqa"}
    ]  # fmt: skip
    samples, better, worse = (sum(row[name] for row in own) for name in ("samples", "better", "worse"))
    before, after = (sum(row[name] * row["samples"] for row in own) / samples for name in ("plain", "calibrated"))
    gain, (low, high) = paired_interval(better, worse, samples)
    without = [
        values["primary"]["measure"], "all but mpqa", f"{samples:,}", f"{100 * before:.1f} %", f"{100 * after:.1f} %",
        f"{100 * gain:+.2f} [{100 * low:+.1f} to {100 * high:+.1f}]", f"{better} / {worse}", "–",
    ]  # fmt: skip
    return [head, primary, without, *(row for row in rows if row[1] == "all")]


def heads_alone() -> Rows:
    """How many heads gain when calibrated alone, by split of the samples, and whether their effects repeat."""
    splits = {
        str(record.config["seed"]): {(row["layer"], row["head"]): row["change"] for row in record.values["tried"]}
        for record in (Record.load(RECORDS / f"{name}.json")
                       for name in ("confirm", *(f"confirm-seed{seed}" for seed in SPLITS)))
    }  # fmt: skip
    table = [["Split", "Heads", "Gain alone, 95 % over heads", "Mean change, nats, 95 % over heads",
              *(f"r with split {seed}" for seed in list(splits)[:-1])]]  # fmt: skip
    for place, (seed, changes) in enumerate(splits.items()):
        gain, values = sum(change > 0 for change in changes.values()), list(changes.values())
        low, high = wilson_interval(gain, len(values))
        ends = mean_interval(values)
        assert ends is not None
        before = list(splits.values())[: len(splits) - 1]
        repeats = ["–" if other >= place else f"{statistics.correlation(values, [one[head] for head in changes]):.2f}"
                   for other, one in enumerate(before)]  # fmt: skip
        table.append([seed, str(len(values)), f"{100 * gain / len(values):.0f} % [{100 * low:.0f} to {100 * high:.0f}]",
                      f"{statistics.fmean(values):+.5f} [{ends[0]:+.5f} to {ends[1]:+.5f}]", *repeats])  # fmt: skip
    return table


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


def measured(name: str, index: int = 0) -> Rows:
    """A table of the page of one measurement."""
    made = main_tables(Record.load(RECORDS / f"{name}.json"))[index]
    return [[column.name for column in made.columns], *made.text()]
