"""A confirmatory study: the plan comes first, parts do not overlap, and every number follows from scores by hand."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
import yaml
from scipy import stats
from transformers import AutoTokenizer

import antiphase as antiphase_package
from antiphase.base.folders.journal import read_lines
from antiphase.base.records import Record
from antiphase.lab.pages.html import write_report
from antiphase.lab.scoring.priors import area_under_curve, balanced_accuracy
from antiphase.lab.studies.calibrate.cells import Cells, LabelScores
from antiphase.lab.studies.calibrate.confirm import PRIMARY
from antiphase.lab.studies.calibrate.confirm import measure as confirming
from antiphase.lab.studies.calibrate.confirm import outcomes as resampling
from antiphase.lab.studies.calibrate.confirm.outcomes import finding, likelihoods, outcomes
from antiphase.lab.text.tasks.tasks import load_task
from support.records import values

CONFIRM = (
    "calibrate confirm model --task task.yaml --also shown.yaml --samples 24 --held-out 0.5 --alpha 1.2 "
    "--least-sinks 0.1 --control-samples 10"
)


@pytest.fixture(autouse=True)
def _files(tmp_path, calibration_model, monkeypatch):
    monkeypatch.setattr(resampling, "RESAMPLES", 200)
    for name in ("model", "task.yaml", "data.txt"):
        (tmp_path / name).symlink_to(calibration_model / name)
    (tmp_path / "shown.yaml").write_text(
        yaml.safe_dump({"template": "cr", "data": "data.txt", "name": "cr-1", "shots": 1})
    )


@pytest.mark.slow
@pytest.mark.essential
def test_confirm(antiphase, tmp_path, monkeypatch):
    """The plan is written before the first score; heads are chosen by one part, and the other parts judge."""
    real, seen = confirming.scored, []

    def scored(model, tasks, **words):
        assert (tmp_path / "s" / "claim.json").is_file()
        seen.append({sample.decode(sample.prompt) for task in tasks.values() for sample in task.samples})
        return real(model, tasks, **words)

    monkeypatch.setattr(confirming, "scored", scored)
    code, out, err = antiphase(f"{CONFIRM} --output s")
    assert code == 0, err
    assert "heads have sinks and are tried on 12 samples" in out
    found = values(tmp_path / "s")
    assert found["verdict"] in " ".join(out.split())
    assert " ".join(out.split()).endswith("next: antiphase calibrate study model --task task.yaml --output s-study")
    written = json.loads((tmp_path / "s" / "claim.json").read_text())
    assert written["contrast"].startswith(found["primary"]["measure"])
    assert (found["claim"]["written"], written["n"]) == (written["written"], found["primary"]["samples"])
    claim = written["details"]
    said = {name: claim[name] for name in ("model", "layers", "alpha", "beta", "mode", "least_sinks")}
    assert said == {"model": "model", "layers": "all", "alpha": 1.2, "beta": 0.4, "mode": "prompt", "least_sinks": 0.1}
    judging = {row["task"]: row["samples"] for row in found["tasks"]}
    assert claim["tasks"] == [
        {"task": "cr", "choose": 12, "judge": judging["cr"], "primary": True},
        {"task": "cr-1", "choose": 0, "judge": judging["cr-1"], "primary": False},
    ]
    assert claim["control_samples"] == found["control_samples"]
    assert {row["sinks"] * 12 for row in found["tried"]} <= set(range(13))  # whole prompts, with no rounding
    tried = {(row["layer"], row["head"]): row["change"] for row in found["tried"]}
    (acting,) = found["acting"]
    assert (acting["task"], acting["prompts"]) == ("cr", 12)
    assert acting["seen_by_enough"] == pytest.approx(fmean(row["sinks"] for row in found["tried"]))
    assert acting["seen_by_enough"] <= acting["any_sink"] <= 1
    assert 0 < len(tried) <= found["all_heads"] == 8
    kept = [(int(layer), head) for layer, heads in found["heads"].items() for head in heads]
    assert kept == [head for head, change in tried.items() if change > 0]
    assert kept, "no head is kept: the rest of the test would show nothing"

    cells = {}
    for line in read_lines(tmp_path / "s" / "cells.jsonl"):
        setting, heads, _ = json.loads(line["key"])
        (name, *_) = line.get("metric", {"": 0})
        count = len(line["metric"][name]) if name else 0
        cells[setting, json.dumps(heads), name, count] = line  # of two alike, the later one: of samples that judge
    assert {("alone", json.dumps({str(layer): [head]}), "cr", 12) for layer, head in tried} <= cells.keys()
    chosen = json.dumps(found["heads"])
    draws = [key for key in cells if key[0].startswith("random heads")]
    assert len(draws) == 20
    assert found["searched"] == {"cr": 12}
    judged = {row["task"]: row["samples"] for row in found["tasks"]}
    of_cr = [cells["plain", "{}", "cr", judged["cr"]], cells["kept heads", chosen, "cr", judged["cr"]]]
    assert judged["cr"] == 12 - found["dropped"]["cr"]
    assert judged["cr-1"] == 23 - found["dropped"]["cr-1"]
    assert f"cr-1: {found['dropped']['cr-1']} of 23 samples that judge are copies of samples that choose" in out
    assert found["dropped"]["cr-1"] in (11, 12)  # texts that chose heads, behind other examples

    logs = [torch.tensor(cell["labels"]["cr"]).log_softmax(1) for cell in of_cr]
    targets = [int(bool(hit)) for hit in of_cr[0]["metric"]["cr"]]
    plain, kept_ = (((log - log.mean(0)).argmax(1) == log.argmax(1)) for log in logs)
    right = [sum(int(same) == hit for same, hit in zip(row.tolist(), targets, strict=True)) for row in (plain, kept_)]
    assert found["primary"]["plain"] == pytest.approx(right[0] / 12)
    assert found["primary"]["samples"] == 12
    assert found["measures"]["cr"]["mean_centred_accuracy"] == found["primary"]["plain"]
    by_task = {row["task"]: row for row in found["secondary"] if row["measure"] == PRIMARY}
    assert by_task.keys() == {"cr", "cr-1"}
    assert by_task["cr"]["gain"] == found["primary"]["gain"]
    assert found["primary"]["p"] is not None
    assert not any("p" in row for row in found["secondary"])  # intervals alone
    assert found["controls"][0]["setting"] == "kept heads"
    assert len(found["controls"]) == 1 + 20 + 5 + 3
    assert {row["heads"] for row in found["controls"][:-1]} == {len(kept)}
    assert found["control_samples"] == 10
    page = write_report([Record.load(tmp_path / "s")], tmp_path / "page.html").read_text()
    for title in ("What the chosen heads gain", "Controls", "The chosen heads beside controls", found["verdict"]):
        assert title in page

    likelihood = {row["of"]: row for row in found["likelihood"]}
    answers = [int(answer) if hit else 1 - int(answer)
               for answer, hit in zip(logs[0].argmax(1), targets, strict=True)]  # fmt: skip
    of_right = [(log - log.mean(0)).log_softmax(1)[range(12), answers] for log in logs]
    assert likelihood["kept heads"]["value"] == pytest.approx(float((of_right[1] - of_right[0]).mean()), abs=1e-6)
    assert likelihood["a head alone"]["value"] == pytest.approx(fmean(tried.values()))
    assert likelihood["share that gains"]["value"] == len(kept) / len(tried)
    assert [row["samples"] for row in found["likelihood"]] == [12, 12, 12]
    assert "change with one head alone, mean over heads" in page

    count = len(seen)
    assert antiphase(f"{CONFIRM} --output s --resume")[0] == 0
    assert len(seen) == count  # nothing is measured twice
    assert values(tmp_path / "s") == found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "file", "least"),
    [(CONFIRM, "cells.jsonl", 6), *(
        (f"calibrate search model --task task.yaml --samples 24 --alpha 1.2 --method {method}", "heads.jsonl", 2)
        for method in ("exhaustive", "cached")
    )],
)  # fmt: skip
def test_work_goes_on_after_a_kill(command, file, least, antiphase, tmp_path):
    """SIGKILL in the middle; what was measured by then is not measured again, and the result is that of a whole run."""
    assert antiphase(f"{command} --output whole")[0] == 0
    words = [sys.executable, "-m", "antiphase", *command.split(), "--output", "part"]
    environment = {**os.environ, "PYTHONPATH": str(Path(antiphase_package.__file__).parent.parent)}
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as process:
        path, begun = tmp_path / "part" / file, time.monotonic()
        while not path.is_file() or path.read_bytes().count(b"\n") < least:
            assert process.poll() is None, "the work ended before it could be killed"
            assert time.monotonic() < begun + 120
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
    before = path.read_bytes()
    before = before[: before.rfind(b"\n") + 1]
    assert not (tmp_path / "part" / "record.json").is_file()
    assert antiphase(f"{command} --output part --resume")[0] == 0
    assert path.read_bytes().startswith(before)
    whole, part = (values(tmp_path / name) for name in ("whole", "part"))
    whole.pop("claim", None), part.pop("claim", None)  # names the minute
    assert part == whole


def planted(count, *, moved, favour, seed=0):
    """Two labels: scores before, and after a favour for one label and a change that repairs ``moved`` wrong answers."""
    generator = torch.Generator().manual_seed(seed)
    margin = torch.rand(count, generator=generator, dtype=torch.float64) + 0.5
    margin[: count // 2] *= -1  # half of the answers are wrong
    targets = torch.arange(count) % 2
    signs = 2.0 * targets - 1
    before = torch.stack([torch.zeros(count, dtype=torch.float64), margin * signs], 1)
    margin[:moved] *= -1
    after = torch.stack([torch.zeros(count, dtype=torch.float64), margin * signs + favour], 1)
    free = torch.zeros(1, 2, dtype=torch.float64)
    return LabelScores(before, free, targets), LabelScores(after, free + torch.tensor([0.0, favour]), targets)


@pytest.mark.slow
def test_outcomes_of_planted_changes():
    """Answers that are repaired count; a favour for a label moves the accuracy, but not the primary measure."""
    pairs = {"a": planted(400, moved=30, favour=0.0, seed=1), "b": planted(200, moved=10, favour=0.0, seed=2)}
    primary, secondary = outcomes(pairs, ["a", "b"], seed=0)
    assert (primary["samples"], primary["better"], primary["worse"]) == (600, 40, 0)
    assert primary["gain"] == pytest.approx(40 / 600)
    assert primary["p"] == pytest.approx(stats.binomtest(40, 40).pvalue)
    rows = {(row["measure"], row["task"]): row for row in secondary}
    assert len(rows) == 4 + 2 * 3
    for task, pair in pairs.items():
        expected = [area_under_curve(found.scores, found.targets) for found in pair]
        assert [rows["AUC", task][key] for key in ("plain", "calibrated")] == expected
    assert [rows["accuracy", task]["better"] for task in pairs] == [30, 10]
    for name, measure in (("balanced accuracy", balanced_accuracy), ("AUC", area_under_curve)):
        row = rows[name, None]
        means = [
            sum(measure(pair[place].scores, pair[place].targets) for pair in pairs.values()) / 2 for place in (0, 1)
        ]
        assert (row["plain"], row["calibrated"]) == pytest.approx(means)
        assert row["gain_interval"][0] < row["gain"] < row["gain_interval"][1]
        assert row["gain_interval"][0] > 0

    favoured = {"a": planted(400, moved=0, favour=0.9)}
    primary, secondary = outcomes(favoured, ["a"], seed=0)
    rows = {(row["measure"], row["task"]): row for row in secondary}
    assert (primary["gain"], primary["p"]) == (0.0, 1.0)
    assert rows["content-free accuracy", None]["gain"] == 0.0
    assert rows["AUC", None]["gain"] == pytest.approx(0)
    accuracy = rows["accuracy", None]
    assert accuracy["better"] > 20
    assert accuracy["worse"] > 20


def test_intervals_of_heads_are_over_samples():
    """The same samples score all heads, so what they have in common does not average out over heads."""
    generator = torch.Generator().manual_seed(2)
    sizes = {"a": 50, "b": 80}
    samples = {name: torch.randn(size, generator=generator, dtype=torch.float64) for name, size in sizes.items()}
    samples = {name: values - values.mean() + 0.001 for name, values in samples.items()}
    alone = [{name: values + 0.01 * (head - 1) for name, values in samples.items()} for head in range(3)]
    rows = {row["of"]: row for row in likelihoods(samples, alone, seed=0)}
    assert [row["samples"] for row in rows.values()] == [130] * 3
    error = math.sqrt(sum(float(values.var()) / len(values) for values in samples.values())) / 2
    for name in ("kept heads", "a head alone"):
        assert rows[name]["value"] == pytest.approx(0.001)
        low, high = rows[name]["interval"]
        assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.06)
    assert (rows["share that gains"]["value"], rows["share that gains"]["interval"]) == (2 / 3, None)
    certain = [{"a": torch.full((5,), value, dtype=torch.float64)} for value in (0.5, -0.1, 0.2, 0.0)]
    rows = {row["of"]: row for row in likelihoods(None, certain, seed=0)}
    assert rows.keys() == {"a head alone", "share that gains"}
    assert rows["share that gains"]["value"] == 0.5


@pytest.mark.slow
def test_a_moved_prior_does_not_hide_what_the_area_under_the_curve_gains():
    rows = []
    for favour in (0.0, 1.5):
        _, secondary = outcomes({"a": planted(400, moved=12, favour=favour)}, ["a"], seed=0)
        rows.append(next(row for row in secondary if row["measure"] == "AUC"))
    assert rows[0]["gain_interval"][0] > 0
    assert [rows[1]["gain"], *rows[1]["gain_interval"]] == pytest.approx([rows[0]["gain"], *rows[0]["gain_interval"]])


def test_evaluations_of_other_heads_or_samples_have_other_names(calibration_model):
    tokenizer = AutoTokenizer.from_pretrained(calibration_model / "model")
    task = load_task(str(calibration_model / "task.yaml"), tokenizer)
    less = replace(task, samples=task.samples[1:])
    settings = [
        ("plain", [], {"a": task}), ("alone", [], {"a": task}), ("plain", [(0, 1)], {"a": task}),
        ("plain", [(0, 2)], {"a": task}), ("plain", [], {"b": task}), ("plain", [], {"a": less}),
    ]  # fmt: skip
    assert len({confirming.key_of(*setting) for setting in settings}) == len(settings)


def test_a_label_that_is_alone_has_no_area_under_the_curve():
    """Neither in a task nor where samples are drawn again, in which a rare label may be missing."""
    rare, alone = planted(60, moved=0, favour=0.0), planted(40, moved=0, favour=0.0)
    numbers = [0, *range(1, 60, 2)]  # one of the first label, answered wrong, and all of the second
    before, after = (found.part(numbers) for found in rare)
    after = replace(after, scores=before.scores.clone())
    after.scores[0] = -after.scores[0]
    pairs = {
        "rare": (before, after), "alone": tuple(found.part(range(0, 40, 2)) for found in alone),
    }  # fmt: skip
    _, secondary = outcomes(pairs, ["rare", "alone"], seed=0)
    rows = {row["task"]: row for row in secondary if row["measure"] == "AUC"}
    assert rows.keys() == {None, "rare"}
    assert rows[None]["samples"] == len(numbers)
    assert rows["rare"]["gain_interval"][0] > 0
    _, secondary = outcomes(pairs, ["alone"], seed=0)
    assert [row["task"] for row in secondary if row["measure"] == "AUC"] == ["rare"]


def test_tasks_outside_of_the_primary_measure_are_secondary():
    pairs = {"a": planted(100, moved=0, favour=0.0), "also": planted(100, moved=20, favour=0.0)}
    primary, secondary = outcomes(pairs, ["a"], seed=0)
    assert (primary["gain"], primary["samples"]) == (0.0, 100)
    primary_by_task = {row["task"]: row["better"] for row in secondary if row["measure"] == primary["measure"]}
    assert primary_by_task == {"a": 0, "also": 20}


@pytest.mark.parametrize(
    ("gain", "p", "p_random", "heads", "words"),
    [
        (0.02, 0.2, 0.01, 3, "No effect is shown"), (-0.02, 0.01, 1.0, 3, "Calibration harms"),
        (0.02, 0.01, 0.3, 3, "not shown to matter"), (0.02, 0.01, 0.04, 3, "random heads gain less"),
        (0.0, 1.0, None, 0, "nothing to judge"),
    ],
)  # fmt: skip
def test_verdicts(gain, p, p_random, heads, words):
    primary = {"gain": gain, "gain_interval": [gain - 0.01, gain + 0.01], "p": p, "samples": 3000}
    kept, lost = ({"gain": -0.05, "gain_interval": [-0.06, high]} for high in (0.01, -0.04))
    found = finding(primary, kept, p_random, heads)
    assert words in found
    assert "falls" not in found
    is_gain = gain > 0 and p < 0.05
    falls = "; plain accuracy falls: -5.00 points (-6.0 to -4.0)."
    assert finding(primary, lost, p_random, heads).endswith(falls) is is_gain


@pytest.mark.slow
@pytest.mark.parametrize("same", [True, False])
def test_texts_that_chose_heads_do_not_judge(antiphase, tmp_path, same):
    """A text that stands twice in the data falls into one part, also if it has another label each time."""
    rows = (tmp_path / "data.txt").read_text()
    copies = rows if same else "".join(f"{1 - int(row[0])}{row[1:]}\n" for row in rows.splitlines())
    (tmp_path / "twice.txt").write_text(rows + copies)
    (tmp_path / "twice.yaml").write_text(yaml.safe_dump({"template": "cr", "data": "twice.txt"}))
    words = CONFIRM.replace("--task task.yaml --also shown.yaml --samples 24", "--task twice.yaml --samples 48")
    assert antiphase(f"{words.replace('--held-out 0.5', '--held-out 0.8')} --output s")[0] == 0
    found = values(tmp_path / "s")
    assert found["dropped"]["twice"] > 0
    (judged,) = found["tasks"][:1]
    assert found["searched"]["twice"] + found["dropped"]["twice"] + judged["samples"] == 48
    assert judged["samples"] < 24  # of 24 texts, each once, without those that chose
    assert judged["chance"] * judged["samples"] == pytest.approx(round(judged["chance"] * judged["samples"]))


def test_a_setting_with_the_scores_of_another_is_known_by_its_own_name(tmp_path):
    """A head without sinks has the scores of the model as it is, and is not evaluated again either."""
    cells = Cells(tmp_path / "cells.jsonl", "prompt", lambda done: None)
    cells.keep("search plain", {"metric": {"cr": [1.0]}})
    cells.keep("alone 0.1", cells.known["search plain"])
    known = Cells(tmp_path / "cells.jsonl", "prompt", lambda done: None).known
    assert list(known) == ["search plain", "alone 0.1"]
    assert {line["metric"]["cr"][0] for line in known.values()} == {1.0}


@pytest.mark.slow
def test_half_precision_is_told(antiphase, tmp_path, calibration_model):
    from transformers import LlamaForCausalLM

    LlamaForCausalLM.from_pretrained(calibration_model / "model").bfloat16().save_pretrained(tmp_path / "half")
    AutoTokenizer.from_pretrained(calibration_model / "model").save_pretrained(tmp_path / "half")
    code, out, _ = antiphase(f"{CONFIRM.replace(' model ', ' half ')} --output s")
    assert code == 0
    assert "bfloat16, whose rounding is as large as the effect" in " ".join(out.split())
    assert values(tmp_path / "s")["dtype"] == "bfloat16"
    search = "calibrate search {} --task task.yaml --samples 24 --alpha 1.2 --layers 0 --output {}"
    for name, is_told in (("half", True), ("model", False)):
        code, out, _ = antiphase(search.format(name, f"search-{name}"))
        assert code == 0
        assert ("bfloat16, whose rounding is as large as the effect" in " ".join(out.split())) == is_told


def test_bad_requests(refused, tmp_path):
    (tmp_path / "choice.jsonl").write_text('{"text": "glad", "choices": ["day", "log"], "label": 0}\n' * 24)
    (tmp_path / "choice.yaml").write_text(
        yaml.safe_dump({"kind": "choice", "data": "choice.jsonl", "prompt": "{{ text }}"})
    )
    refused("--task choice: its samples have no labels in common", f"{CONFIRM} --task choice.yaml --output s")
    refused("--also must not name a file of --task", f"{CONFIRM} --also task.yaml --output s")
    (tmp_path / "same.yaml").write_bytes((tmp_path / "task.yaml").read_bytes())
    refused(
        "same.yaml: another task has the name 'cr' too; give one of them another, for example 'name: cr-2'",
        f"{CONFIRM} --also same.yaml --output s",
    )
    refused("--mode must be paper or prompt", f"{CONFIRM} --mode running --output s")
    refused("--least-sinks: no head has a sink in so many prompts", f"{CONFIRM} --alpha 50 --output s")
    refused("--least-sinks must lie between 0 and 1", f"{CONFIRM} --least-sinks 2 --output s")
    refused("antiphase: --task is missing", "calibrate confirm model --output s")
