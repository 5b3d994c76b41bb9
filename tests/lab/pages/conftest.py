"""Synthetic records: a plain comparison, an awkward one with all that may be missing or hostile."""

import math
from itertools import product

import numpy
import pytest

from antiphase.base.records import Record
from antiphase.lab.pages import write_report

LAST = "difference"
SPANS = ("first_token", "instruction", "answer", "other_needles", "filler", "question")


def make_run(arm, seed, *, quality, lambdas):
    curve = []
    for step in range(0, 601, 50):
        learned = quality * (1 - math.exp(-step / (180 + 25 * seed)))
        loss = 4.2 - 2 * learned
        curve.append({"step": step, "train_loss": loss - 0.05, "loss": loss, "accuracy": 0.125 + 0.8 * learned})
    passes = next((point["step"] for point in curve if point["accuracy"] >= 0.5), None)
    return {
        "arm": arm, "seed": seed, "folder": f"{arm}-seed{seed}", "learning_rate": 3e-3,
        "parameters": 1_234_567, "seconds": 312.4, "passes": passes,
        "tokens_per_second": 20000 - 3000 * (arm == "differential") + 100 * seed,
        "peak_memory": (20 + 2 * seed) << 20,
        "final": {"loss": curve[-1]["loss"], "accuracy": curve[-1]["accuracy"]},
        "best": {"accuracy": curve[-1]["accuracy"], "step": 600}, "curve": curve, "lambdas": lambdas,
        "gradient_norms": [0.31, 0.22, 0.4],
    }  # fmt: skip


def make_needles(arms, *, needles, lengths, depths):
    cells, summary = [], []
    for arm, trained, count, length, depth in product(arms, (True, False), needles, lengths, [*depths, None]):
        level = 0.9 - 0.1 * arms.index(arm) - 0.02 * count if trained else 1 / count
        accuracy = round(max(0.0, level - 0.2 * (depth or 0) * (1 - (depth or 0))), 3)
        place = {"arm": arm, "trained": trained, "needles": count, "queries": 2, "length": length, "depth": depth}
        interval = [max(0, accuracy - 0.05), min(1, accuracy + 0.04)]
        extra = {"accuracy": accuracy, "interval": interval, "samples": 400, "guess_rate": 1 / count}
        summary.append(place | extra)
        if depth is not None:
            counts = {
                "samples": 200,
                "correct": round(200 * accuracy),
                "by_place": [accuracy, 0.5],
                "guess_rate": 1 / count,
            }
            cells += [place | counts | {"seed": seed} for seed in (0, 1)]
    return {"cells": cells, "summary": summary}


def make_allocation(arms, seeds):
    rows = []
    maps = [(arm, name) for arm in arms for name in (["softmax"] if arm == "softmax" else ["first", "second", LAST])]
    for (arm, name), seed, trained, layer in product(maps, seeds, (True, False), ("all", 0, 1)):
        spans = {
            span: {
                "share": round(0.1 + 0.03 * place + 0.005 * seed, 4),
                "signed": round((0.1 + 0.02 * place) * (-1 if name == LAST and place == 4 else 1), 4),
            }
            for place, span in enumerate(SPANS)
        }
        row = {"arm": arm, "seed": seed, "trained": trained, "layer": layer, "map": name, "spans": spans,
               "answer_to_noise": {"signed": 0.4, "share": 0.3}}  # fmt: skip
        if name not in ("first", "second"):
            change = -1.5 - 0.25 * seed if layer == "all" else -0.5
            filler = {"change": 0.01, "interval": [-0.02, 0.04]}
            row["knockout"] = {"answer": {"change": change, "interval": [change - 0.5, change + 0.5]}, "filler": filler}
            for place, span in enumerate(SPANS):
                spans[span] |= {"contribution": round(0.5 - 0.2 * place + 0.01 * seed, 4), "contribution_norm": 0.7}
        rows.append(row)
    return rows


def make_maps(arms, tokens):
    """Causal maps of three layers, with a peak in one of them; differential ones with another map subtracted."""
    generator = numpy.random.default_rng(0)
    arrays = {}
    for arm, heads in zip(arms, (4, 2), strict=True):
        scores = generator.normal(size=(3, heads, tokens, tokens)) * 1.5
        scores[1, 1, -1, 10:12] += 5
        visible = numpy.tril(numpy.ones((tokens, tokens), dtype=bool))
        weights = numpy.exp(scores) * visible
        weights /= weights.sum(-1, keepdims=True)
        if arm == "differential":
            noise = numpy.exp(generator.normal(size=weights.shape)) * visible
            weights = weights - 0.4 * noise / noise.sum(-1, keepdims=True)
        arrays[f"attention_map.{arm}"] = weights.astype(numpy.float32)
    return arrays


def make_comparison(*, needles=None, seeds=3, tokens=40):
    """A complete record of softmax against differential."""
    arms = ["softmax", "differential"]
    runs = [
        make_run(
            arm, seed, quality=(0.6 if arm == "softmax" else 0.85) - 0.02 * seed**2,
            lambdas=None if arm == "softmax" else [0.2 + 0.02 * seed, 0.35, 0.47 - 0.01 * seed],
        )
        for arm in arms
        for seed in range(seeds)
    ]  # fmt: skip
    accuracy = {arm: [run["final"]["accuracy"] for run in runs if run["arm"] == arm] for arm in arms}
    entry = {
        "metric": "first-query accuracy", "unit": "points", "lower_is_better": False,
        "arms": {
            arm: {
                "median": float(numpy.median(values)), "mean": float(numpy.mean(values)),
                "minimum": min(values), "maximum": max(values), "values": values,
            }
            for arm, values in accuracy.items()
        },
        "differences": {"differential": {"mean": 0.17, "interval": [0.11, 0.23], "seeds": seeds}},
        "sentence": "differential is ahead of softmax in 3 of 3 seeds: 75.1 % against 57.9 % & so on.",
    }  # fmt: skip
    words = ["<s>", "Remember", "▁the", "magic", "number", "of", "Ġparis", "is", ":", "→", "42", "7"]
    values = {
        "arms": arms, "baseline": "softmax", "threshold": 0.5, "guess_rate": 0.125,
        "parameters": {arm: {"total": 1_234_567, "attention_only": 234_567} for arm in arms},
        "runs": runs,
        "needles": make_needles(
            arms, needles=needles or [8], lengths=[256], depths=[0.0, 0.25, 0.5, 0.75, 1.0]
        ),
        "perplexity": [
            {"arm": arm, "seed": 0, "loss": 2.5, "perplexity": 12.18, "tokens": 51200} for arm in arms
        ],
        "allocation": make_allocation(arms, list(range(seeds))),
        "attention_map": {
            "tokens": [words[index % len(words)] for index in range(tokens)],
            "query": tokens - 1, "rows": list(range(tokens)), "answer": [10, 11], "layers": 3,
            "arrays": {arm: f"attention_map.{arm}" for arm in arms},
        },
        "comparison": [entry],
        "verdict": "These 3 seeds are an observation of one small setting, no verdict on the paper's claim.",
    }  # fmt: skip
    return Record(
        kind="compare", values=values, config={"model": {"hidden_size": 128}, "data": {"paths": []}},
        seeds=list(range(seeds)), seconds=1812.5, command="antiphase compare --preset demo --output demo",
        created="2026-01-02T03:04:05+00:00", environment={"python": "3.11.7", "torch": "2.13.0"},
        arrays=make_maps(arms, tokens),
    )  # fmt: skip


def make_awkward():
    """Three arms, one seed, nulls, hostile text, a run that never passes, one depth, no allocation."""
    hostile = '<script>alert("x")</script>'
    arms = ["softmax", "differential", "<b>$x^ & [red]'s</b>"]
    runs = [make_run(arm, 0, quality=0.1, lambdas=None) for arm in arms]
    runs[0]["final"] = {"loss": None, "accuracy": None}
    runs[1]["curve"] = [{"step": 10, "train_loss": None, "loss": None, "accuracy": None}, {"step": 20, "accuracy": 0.3}]
    runs[1]["lambdas"] = [0.2, None]
    runs[2]["curve"] = []
    del runs[2]["best"]
    values = {
        "arms": arms, "baseline": "softmax", "threshold": 0.5, "guess_rate": None, "parameters": {},
        "runs": runs,
        "needles": {
            "cells": [],
            "summary": [
                {"arm": arm, "trained": True, "needles": 4, "queries": 2, "length": 64, "depth": depth,
                 "accuracy": accuracy, "interval": [0.0, 1.0], "samples": 3, "guess_rate": 0.25}
                for arm, accuracy in zip(arms, (0.5, 0.0, 1.0), strict=True)
                for depth in (0.5, None)
            ],
        },
        "perplexity": [], "allocation": [],
        "attention_map": {
            "tokens": [hostile, "$x^", "\n", "\x00", "日", "]]>"], "query": 5, "answer": [1], "layers": 1,
            "rows": [4, 5], "arrays": {arm: f"attention_map.{arm}" for arm in arms},
        },
        "comparison": [
            {"metric": "steps to 50 %", "unit": "steps", "lower_is_better": True, "differences": {},
             "arms": {arm: {"median": None, "mean": None, "minimum": None, "maximum": None, "values": [None]}
                      for arm in arms},
             "sentence": f"No arm reached 50 % & nobody is ahead of {hostile}."}
        ],
        "verdict": "",
    }  # fmt: skip
    weights = numpy.array([[[[0.5, 0.1, 0.2, 0.1, 0.1, 0], [0.1, -0.7, 0.1, 0.1, 0, 0]]]], dtype=numpy.float16)
    return Record(
        kind="compare", values=values, config={"note": hostile}, command=f"antiphase compare --set {hostile}",
        created="2026-01-02T03:04:05+00:00", environment={}, arrays={"attention_map.softmax": weights},
    )  # fmt: skip


@pytest.fixture
def comparison():
    return make_comparison()


@pytest.fixture
def awkward():
    return make_awkward()


@pytest.fixture
def grid_comparison():
    return make_comparison(needles=[4, 8, 16], seeds=2)


@pytest.fixture(scope="session")
def both_on_a_page(tmp_path_factory):
    """The plain and the awkward record on one page: drawn once, read by many tests."""
    return write_report([make_comparison(), make_awkward()], tmp_path_factory.mktemp("page") / "report.html")
