"""Tables of the studies of ``programme.yaml``: the primary contrast with a verdict, the others by intervals alone.

    python -m experiments.programme a

A study is its claim (``records/programme/STUDY/claim.json``, written before its runs) and its entry ``STUDY/runs``
in ``programme.yaml``, whose arms ran at the rates that ``STUDY/rates`` chose. Steps to learn are compared by survival
analysis, losses and noise in blocks (``antiphase.lab.statistics``).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median, median_high, median_low
from typing import Any

import numpy
from rich.console import Console

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.statistics.blocks import Blocks, Contrast, smallest_detectable
from antiphase.lab.statistics.intervals import mean_interval
from antiphase.lab.statistics.survival import compare_steps, survival
from antiphase.lab.statistics.verdicts import CONFIDENCE, MARGIN, verdict
from experiments import programme_runs
from experiments.json_lines import Line
from experiments.programme_runs import LEARNED, lines, steps_to
from tools.tables.markdown import Rows, markdown

WELL = 0.9
"""First-query accuracy at which a run has learned to retrieve well."""
PARTS = {"filler": "filler", "other_needles": "other facts"}
PAPERS: Mapping[tuple[str, str], float] = {
    ("V1", "S"): 3.062 - 3.087, ("V1", "SW"): 3.062 - 3.086, ("SW", "S"): 3.086 - 3.087,
}  # fmt: skip
"""The paper's differences of held-out losses, nats per token (2410.05258, table 6)."""


@dataclass(frozen=True)
class Study:
    """The runs of a study by arm and seed, in the order of its arms, and its claim."""

    name: str
    claim: Mapping[str, Any]
    measures: str
    """steps, loss or noise"""
    runs: Mapping[str, Mapping[int, Line]]
    seeds: Sequence[int]
    """Those with a run of every arm."""
    pooled: bool | None
    """Whether the primary contrast has one residual variance over all arms; None: if they vary alike."""

    @classmethod
    def of(cls, name: str) -> Study:
        """
        Raises:
            InputError: there is no such study, or it has no claim.
        """
        known = programme_runs.studies()
        entry, path = f"{name}/runs", programme_runs.RECORDS / name / "claim.json"
        if entry not in known or not path.is_file():
            raise InputError(f"STUDY must have an entry STUDY/runs in programme.yaml and a claim, got {name}")
        found: dict[str, dict[int, Line]] = {arm: {} for arm in known[entry]["arms"]}
        for line in (*lines(entry), *_of_blocks(path.parent)):
            found[line["arm"]][line["seed"]] = line
        seeds = [seed for seed in known[entry]["seeds"] if all(seed in own for own in found.values())]
        measures = "noise" if "until" in known[entry] else known[known[entry]["rates_from"]]["chosen_by"]
        return cls(name, json.loads(path.read_text("utf-8")), measures, found, seeds, known[entry].get("pooled"))

    @property
    def primary(self) -> tuple[str, str]:
        """The arm and the one that it is compared with."""
        arm, other = self.claim["primary"]["contrast"]
        return arm, other

    @property
    def confidence(self) -> float:
        """Of the interval that tests the primary contrast; several measures share alpha."""
        primary = self.claim["primary"]
        return 1 - float(primary.get("alpha", 0.05)) / len(primary.get("measures", ["one"]))

    @property
    def is_tested(self) -> bool:
        """Whether there are as many seeds as the claim asks for: a test at every new seed finds too much."""
        return len(self.seeds) >= self.claim["primary"].get("least", self.claim["n"])

    def contrasts(self) -> list[tuple[str, str]]:
        """The primary contrast, then that arm against all others, then they against the first."""
        arm, other = self.primary
        first, *rest = self.runs
        pairs = [(arm, other), *((arm, one) for one in self.runs), *((one, first) for one in rest)]
        return list(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))

    def series(self, read: Callable[[Line], Any]) -> dict[str, list[Any]]:
        """Arm to what ``read`` finds in the line of each seed."""
        return {arm: [read(own[seed]) for seed in self.seeds] for arm, own in self.runs.items()}


def _of_blocks(folder: Path) -> list[Line]:
    """The runs of a study that ``gpu_block.py`` made, with L50 of the extended models where a block counts for it; an
    arm that diverged answers nothing.
    """
    found = []
    for path in sorted(folder.glob("block-*.json")):
        block = Record.load(path).values
        measured = {} if block["for_loss_alone"] else block["measured"]["needles-extended"]
        known = {arm: row for arm, own in measured.items() for row in own["crossings"]
                 if row["trained"] and row["over"] == "length"}  # fmt: skip
        if known:
            sizes = next(iter(known.values()))["sizes"]
            known |= {arm: programme_runs.unanswered(sizes) for arm in block["diverged"]}
        found += [{**line, "l50": known[line["arm"]]} if line["arm"] in known else line for line in block["runs"]]
    return found


def steps_tables(study: Study) -> dict[str, Rows]:
    """For 50 % and 90 %: steps by arm, and hazard ratios; the log-rank test of the primary contrast at 50 % alone."""
    tables: dict[str, Rows] = {}
    for accuracy in (LEARNED, WELL):
        steps = study.series(partial(steps_to, accuracy=accuracy))
        until = max(point[0] for own in study.runs.values() for line in own.values() for point in line["curve"][-1:])
        by_arm: Rows = [["arm", "rate", f"passed {100 * accuracy:.0f} %", "median step", "95 %"]]
        for arm, own in steps.items():
            found = survival(own, until)
            middle, *ends = (f"> {until}" if step is None else str(step) for step in
                             (found.median, *found.median_interval))  # fmt: skip
            rate = f"{study.runs[arm][study.seeds[0]]['rate']:g}"
            interval = " to ".join(ends) if found.seeds > 5 else "–"  # five have no interval of a median
            by_arm.append([arm, rate, f"{found.passed} of {found.seeds}", middle, interval])
        pairs: Rows = [[f"sooner past {100 * accuracy:.0f} %", "hazard ratio", "95 %", "log-rank p",
                        "seen with 80 % power", "verdict", "steps, median ratio", "sooner"]]  # fmt: skip
        for arm, other in study.contrasts():
            ratio = compare_steps(steps[arm], steps[other])
            cells = ["–"] * 5
            if ratio is not None:
                cells[:2] = [f"{ratio.ratio:.2f}", "{:.2f} to {:.2f}".format(*ratio.interval)]
                if (arm, other) == study.primary and accuracy == LEARNED and study.is_tested:
                    cells[2:] = [f"{ratio.p:.2g}", f"{ratio.detectable:.2f}", str(ratio.word())]
            both = [
                (mine or math.inf, theirs or math.inf) for mine, theirs in zip(steps[arm], steps[other], strict=True)
            ]
            ratios = [a / b for a, b in both if min(a, b) < math.inf]  # of two that never passed there is none
            typical = math.sqrt(median_low(ratios) * median_high(ratios)) if ratios else math.nan
            spoken = {math.inf: "never", 0.0: "the other never"}.get(typical, f"{typical:.2f}".replace("nan", "–"))
            cells += [spoken, f"{sum(a < b for a, b in both)} of {len(both)}"]
            pairs.append([f"{arm} against {other}", *cells])
        tables |= {f"steps-{100 * accuracy:.0f}": by_arm, f"ratios-{100 * accuracy:.0f}": pairs}
    return tables | lengths_tables(study)


def lengths_tables(study: Study) -> dict[str, Rows]:
    """Up to which length half of the answers are right, in the seeds where that was measured of every arm: lower
    medians by arm, and ratios to the first arm in blocks; the primary contrast, if this is one of its measures.
    """
    seeds = [seed for seed in study.seeds if all("l50" in own[seed] for own in study.runs.values())]
    if not seeds:
        return {}
    study = replace(study, seeds=seeds)
    rows: Rows = [["arm", "half are right up to, tokens", "range", "ratio to the first arm", "95 %"]]
    first, *_ = study.runs
    found = study.series(lambda line: line["l50"])
    blocks = Blocks.of({arm: [row["value"] and math.log2(row["value"]) for row in own] for arm, own in found.items()})
    for arm, own in found.items():
        ends = {"below": own[0]["sizes"][0], "above": own[0]["sizes"][-1]}
        lengths = sorted(row["value"] or ends[row["beyond"]] for row in own)
        shown = [{ends["below"]: f"≤ {length:.0f}", ends["above"]: f"≥ {length:.0f}"}.get(length, f"{length:.0f}")
                 for length in (median_low(lengths), lengths[0], lengths[-1])]  # fmt: skip
        ratio = None if blocks is None or arm == first else blocks.difference(arm, first)
        cells = [f"{2**ratio.estimate:.2f}", " to ".join(f"{2**end:.2f}" for end in ratio.interval())] if ratio else []
        rows.append([arm, shown[0], " to ".join(shown[1:]), *(cells or ["–", "–"])])
    tables = {"lengths": rows}
    if "lengths" in study.claim["primary"].get("measures", []):
        arm, other = study.primary
        ratio = None if blocks is None else blocks.contrast({arm: 1.0, other: -1.0}, pooled=study.pooled)
        cells, level = ["–"] * 4, f"{100 * study.confidence:g} %"
        if ratio is not None:
            limits = ratio.interval(study.confidence)
            seen = smallest_detectable(ratio.error, ratio.degrees, study.confidence)
            word = str(verdict(limits, lower_is_better=False, detectable=None, paper=None)) if study.is_tested else "–"
            cells = [f"{2**ratio.estimate:.2f}", " to ".join(f"{2**end:.2f}" for end in limits), f"{2**seen:.2f}", word]
        head = ["length at which half are right, ratio", "mean", level, "n", "seen with 80 % power", "verdict"]
        tables["lengths-primary"] = [head, [f"{arm} / {other}", *cells[:2], str(len(seeds)), *cells[2:]]]
    return tables


def loss_of(line: Line, document: str) -> float | None:
    """Held-out loss of a document, nats per token; None if the run diverged."""
    return None if line["by_document"] is None else line["by_document"][document]


def mean_losses(study: Study) -> dict[str, list[Any]]:
    """Arm to the held-out loss of each seed, mean over documents; None where the run diverged."""
    return study.series(lambda line: line["by_document"] and fmean(line["by_document"].values()))


def loss_tables(study: Study) -> dict[str, Rows]:
    """Mean losses by arm, and differences: of the mean over documents, and of each document alone."""
    losses = mean_losses(study)
    blocks = Blocks.of(losses)
    first, *_ = losses
    by_arm: Rows = [["arm", "rate", "parameters", "held-out loss", f"- {first}", "95 %", "by seed"]]
    for arm, values in losses.items():
        line = study.runs[arm][study.seeds[0]]
        listed = ", ".join("diverged" if value is None else f"{value:.3f}" for value in values)
        mean = "–" if None in values else f"{fmean(values):.4f}"
        found = None if blocks is None or arm == first else blocks.difference(arm, first)
        cells = [f"{found.estimate:+.3f}", "{:+.3f} to {:+.3f}".format(*found.interval())] if found else ["–", "–"]
        by_arm.append([arm, f"{line['rate']:g}", f"{line['parameters']:,}", mean, *cells, listed])
    documents = list(next((line["by_document"] for own in study.runs.values() for line in own.values()
                           if line["by_document"]), {}))  # fmt: skip
    alone = {name: Blocks.of(study.series(partial(loss_of, document=name))) for name in documents}
    pairs: Rows = [["difference, nats per token", "mean", "95 %", "n", "seen with 80 % power", "the paper",
                    f"within ±{MARGIN:g}", "verdict", "by document"]]  # fmt: skip
    for arm, other in study.contrasts():
        is_primary = (arm, other) == study.primary
        pooled = study.pooled if is_primary else None
        found = None if blocks is None else blocks.contrast({arm: 1.0, other: -1.0}, pooled=pooled)
        if found is None:
            pairs.append([f"{arm} - {other}", *["–"] * 8])
            continue
        confidence = study.confidence if is_primary else CONFIDENCE
        low, high = found.interval(confidence)
        seen = smallest_detectable(found.error, found.degrees, confidence)
        level = "" if confidence == CONFIDENCE else f" ({100 * confidence:g} %)"
        paper, word = PAPERS.get((arm, other)), "–"
        if is_primary and study.is_tested:
            word = str(verdict((low, high), lower_is_better=True, detectable=seen, paper=paper))
        each = [one.difference(arm, other) for one in alone.values() if one is not None]
        pairs.append([
            f"{arm} - {other}", f"{found.estimate:+.4f}", f"{low:+.4f} to {high:+.4f}{level}", str(found.blocks),
            f"{seen:.4f}", "–" if paper is None else f"{paper:+.3f}",
            "yes" if found.is_within(MARGIN) else "no", word,
            ", ".join("–" if one is None else f"{one.estimate:+.3f}" for one in each),
        ])  # fmt: skip
    return {"losses": by_arm, "differences": pairs, "pooling": _pooling(blocks), **lengths_tables(study)}


def _drawn_again(line: Line, part: str, name: str) -> float:
    """A number of the answers when a part is drawn again."""
    (row,) = [row for row in line["noise"]["resampled"] if row["part"] == part]
    found = row[name]
    return float(found["value"] if isinstance(found, dict) else found)


def noise_tables(study: Study) -> dict[str, Rows]:
    """How far answers stand above what irrelevant tokens do to them, and what changes of the attention do."""
    shown = [("filler", "log_odds"), ("filler", "sd"), ("filler", "ratio"), ("other_needles", "ratio")]
    by_arm: Rows = [["arm", "first past 90 %, median step", "right", "log-odds, mean", "sd, filler drawn again",
                     "mean / sd", "mean / sd, other facts drawn again"]]  # fmt: skip
    for arm, own in study.runs.items():
        some = [own[seed] for seed in study.seeds]
        cells = [fmean(_drawn_again(line, *one) for line in some) for one in shown]
        right = fmean(_drawn_again(line, "filler", "accuracy") for line in some)
        step = median(line["curve"][-1][0] for line in some)
        by_arm.append([arm, f"{step:.0f}", f"{100 * right:.1f} %", *(f"{value:.2f}" for value in cells)])
    pairs: Rows = [["difference of mean / sd", "filler drawn again", "95 %", "n", "seen with 80 % power", "verdict",
                    "other facts drawn again", "95 %"]]  # fmt: skip
    parts = [Blocks.of(study.series(partial(_drawn_again, part=part, name="ratio"))) for part in PARTS]
    for arm, other in study.contrasts():
        found = [None if blocks is None else blocks.difference(arm, other) for blocks in parts]
        filler, facts = ([f"{one.estimate:+.2f}", "{:+.2f} to {:+.2f}".format(*one.interval())] if one else ["–", "–"]
                         for one in found)  # fmt: skip
        size = [str(found[0].blocks), f"{found[0].detectable:.2f}"] if found[0] else ["–", "–"]
        word = "–"
        if found[0] and (arm, other) == study.primary and study.is_tested:
            word = str(verdict(found[0].interval(), lower_is_better=False, detectable=None, paper=None))
        pairs.append([f"{arm} - {other}", *filler, *size, word, *facts])
    return {
        "noise": by_arm,
        "noise-differences": pairs,
        "noise-adjusted": _at_equal_accuracy(study),
        "noise-changed": _changed(study),
        "pooling": _pooling(parts[0]),
    }


def _at_equal_accuracy(study: Study) -> Rows:
    """The same differences at equal accuracy in these contexts, by least squares on arms, seeds and accuracy.

    The first checkpoint past an accuracy is not equally far past it in all arms, and mean / sd rises with accuracy.
    """
    arms = list(study.runs)
    rows: Rows = [["at equal accuracy", "filler drawn again", "95 %", "other facts drawn again", "95 %"]]
    rows += [[f"{arm} - {other}"] for arm, other in study.contrasts()]
    of_arm = numpy.repeat(numpy.eye(len(arms)), len(study.seeds), 0)
    of_seed = numpy.tile(numpy.eye(len(study.seeds))[:, 1:], (len(arms), 1))
    for part in PARTS:
        accuracy, ratio = (
            numpy.concatenate(list(study.series(partial(_drawn_again, part=part, name=name)).values()))
            for name in ("accuracy", "ratio")
        )
        design = numpy.column_stack([of_arm, of_seed, accuracy])
        fitted, _, rank, _ = numpy.linalg.lstsq(design, ratio, rcond=None)
        degrees = len(ratio) - int(rank)
        spread = numpy.linalg.pinv(design.T @ design) * ((ratio - design @ fitted) ** 2).sum() / degrees
        for row, (arm, other) in zip(rows[1:], study.contrasts(), strict=True):
            weights = numpy.zeros(design.shape[1])
            weights[arms.index(arm)], weights[arms.index(other)] = 1, -1
            error = float(weights @ spread @ weights) ** 0.5
            found = Contrast(float(weights @ fitted), error, degrees, len(study.seeds))
            row += [f"{found.estimate:+.2f}", "{:+.2f} to {:+.2f}".format(*found.interval())]
    return rows


def _changed(study: Study) -> Rows:
    """What hiding parts, and removing or exchanging second maps, does to answers: means over seeds."""
    rows: Rows = [["arm", "change", "in layers", "right before", "right", "change of log-odds", "95 %"]]
    for arm, own in study.runs.items():
        found: dict[tuple[str, str], list[Line]] = {}
        for seed in study.seeds:
            for row in own[seed]["noise"]["changed"]:
                what = f"second map {row['change']}" if row["part"] is None else f"{PARTS[row['part']]} hidden"
                numbers = None if row["layers"] is None else ", ".join(str(layer + 1) for layer in row["layers"])
                where = "all" if numbers is None else numbers if row["part"] is None else "that retrieve"
                found.setdefault((what, where), []).append(row)
        for (what, where), some in found.items():
            changes = [row["log_odds"]["value"] for row in some]
            interval = mean_interval(changes)
            right = (f"{100 * fmean(row[name] for row in some):.1f} %" for name in ("accuracy_before", "accuracy"))
            rows.append([
                arm, what, where, *right, f"{fmean(changes):+.2f}",
                "–" if interval is None else "{:+.2f} to {:+.2f}".format(*interval),
            ])  # fmt: skip
    return rows


def _pooling(blocks: Blocks[str] | None) -> Rows:
    """Whether the arms vary alike."""
    rows: Rows = [["residual standard deviation", "p that arms vary alike", "pooled"]]
    if blocks is not None:
        p = "–" if blocks.pooling_p is None else f"{blocks.pooling_p:.2g}"
        rows.append([f"{blocks.spread:.4f}", p, "yes" if blocks.is_pooled else "no"])
    return rows


def tables(name: str) -> dict[str, Rows]:
    """All tables of a study, by name; none before a seed has a run of every arm.

    Raises:
        InputError: as ``Study.of``.
    """
    study = Study.of(name)
    if not study.seeds:
        return {}
    return {"steps": steps_tables, "loss": loss_tables, "noise": noise_tables}[study.measures](study)


def on_pages() -> dict[str, Callable[[], Rows]]:
    """Tables by the names that stand in pages, such as ``programme-a-ratios-50``; no values by seed or document."""

    def of(study: str, kind: str) -> Rows:
        rows = tables(study).get(kind, [["no seed has all of it yet"]])
        return [row[:-1] for row in rows] if rows[0][-1] in ("by seed", "by document") else rows

    kinds = ("steps-50", "ratios-50", "steps-90", "ratios-90", "losses", "differences", "pooling", "noise",
             "noise-differences", "noise-adjusted", "noise-changed", "lengths", "lengths-primary")  # fmt: skip
    names = [name.removesuffix("/runs") for name in programme_runs.studies() if name.endswith("/runs")]
    return {f"programme-{name}-{kind}": partial(of, name, kind) for name in names for kind in kinds}


def main() -> None:
    """Print the tables of a study."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", help="such as a")
    name = parser.parse_args().study
    console = Console(highlight=False, soft_wrap=True)
    try:
        study = Study.of(name)
        found = tables(name)
    except InputError as error:
        raise SystemExit(str(error)) from None
    console.print(f"{study.claim['question']} Primary: {' - '.join(study.primary)}; {len(study.seeds)} seeds.")
    for rows in found.values():
        console.print(f"\n{markdown(rows)}", markup=False)


if __name__ == "__main__":
    main()
