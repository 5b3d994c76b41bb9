"""Search, apply and study from the command line, on a tiny model: results, resumption, refusals."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import yaml
from transformers import Lfm2Config, Lfm2ForCausalLM, LlamaForCausalLM

from antiphase.base.errors import InputError
from antiphase.base.folders.journal import read_lines
from antiphase.base.records import Record
from antiphase.calibration import CalibrationPlan
from antiphase.calibration.plan import fingerprint
from antiphase.calibration.search import METHODS
from antiphase.lab.pages.html import write_report
from antiphase.lab.scoring.task_scores import score_samples
from antiphase.lab.settings.flags import flags_of
from antiphase.lab.studies.calibrate.apply import measure as applying
from antiphase.lab.studies.calibrate.measuring import SCORES, by_mode, hash_of_sample
from antiphase.lab.studies.calibrate.search import SearchSettings
from antiphase.lab.studies.calibrate.search import measure as searching
from antiphase.lab.text.tasks.tasks import load_task
from support.records import values


@pytest.fixture(autouse=True)
def _files(tmp_path, calibration_model):
    for name in ("model", "task.yaml", "data.txt"):
        (tmp_path / name).symlink_to(calibration_model / name)


SEARCH = "calibrate search model --task task.yaml --samples 24 --alpha 1.2"


def test_search_writes_a_plan_that_apply_takes(antiphase, tmp_path):
    code, out, _ = antiphase(f"{SEARCH} --score probability --output s")
    assert code == 0
    assert "Held-out probability of right answers before" in out
    assert out.endswith(
        "plan:   s/plan.json\n"
        "next:   antiphase calibrate apply model --plan s/plan.json --task OTHER.yaml --output s-apply\n"
    )
    found = values(tmp_path / "s")
    plan = CalibrationPlan.load(tmp_path / "s" / "plan.json")
    assert (plan.alpha, plan.mode) == (1.2, "prompt")
    assert {str(layer): maps for layer, maps in plan.heads.items()} == found["heads"]
    assert len(found["heads_alone"]) == found["evaluations"] == 8
    kept = {f"{layer}.{head}" for layer, maps in plan.heads.items() for head in maps}
    assert kept == {name for name, row in found["heads_alone"].items() if row["change"] > 0}
    assert kept, "no head's calibration changes this model's answers: the rest of the test would show nothing"
    low, high = found["held_out_gain_interval"]
    assert low <= found["held_out_gain"] <= high
    assert found["tasks"][0]["score"] > 0.9
    controls = {row["setting"]: row for row in found["controls"]}
    count = sum(map(len, plan.heads.values()))
    assert len(controls) == 1 + 20 + 5 + 2
    assert {row["heads"] for row in controls.values()} == {count}
    assert controls["kept heads"]["gain"] == pytest.approx(found["held_out_gain"], abs=1e-6)
    assert (
        len({controls[name]["gain"] for name in ("kept heads", "random tokens 0", "first token alone", "inverse")}) > 2
    )
    plain, after = found["measures"]["cr"], found["measures_calibrated"]["cr"]
    assert plain.keys() == after.keys() == {
        "accuracy", "balanced_accuracy", "auc", "mean_centred_accuracy", "content_free_accuracy"
    }  # fmt: skip
    moved = after["mean_centred_accuracy"] - plain["mean_centred_accuracy"]
    assert controls["kept heads"]["mean_centred_gain"] == pytest.approx(moved)
    page = (tmp_path / "s" / "report.html").read_text()
    for title in ("Calibration found", "What moved: the reading or the prior", "Controls"):
        assert title in page
    assert page.count("<img") == 1

    code, out, _ = antiphase(
        "calibrate apply model --plan s/plan.json --task task.yaml --samples 24 --text glad", "--output a"
    )
    assert code == 0
    applied = values(tmp_path / "a")
    row = applied["tasks"][0]
    assert (row["samples"], row["left_out"]) == (12, 12)  # those that chose no head: the same as the search's own
    assert (row["score"], row["calibrated"]) == (1.0, 1.0)
    assert applied["plan"]["heads"] == found["heads"]
    assert applied["plan"]["fingerprint"]["weights"]
    assert row["measures"] == pytest.approx(plain)  # of the same samples
    assert row["measures_calibrated"] == pytest.approx(after)
    assert applied["texts"][0]["text"] == "glad"
    assert "Continued texts" in (tmp_path / "a" / "report.html").read_text()


def test_controls_have_progress_and_can_be_left_out(antiphase, tmp_path):
    settings = SearchSettings(
        name=str(tmp_path / "model"), tasks=[str(tmp_path / "task.yaml")], samples=24, alpha=1.2, score="probability"
    )
    told = []
    searching.search(settings, tmp_path / "s", report=lambda done, count: told.append((done, count)))
    assert sorted(set(told)) == [(done, 8 + 2 + 27) for done in range(1, 8 + 2 + 27 + 1)]
    code, out, _ = antiphase(f"{SEARCH} --score probability --no-controls --output n")
    assert code == 0
    assert "heads and controls: 10 of 10" in out
    assert [row["setting"] for row in values(tmp_path / "n")["controls"]] == ["kept heads"]
    assert Record.load(tmp_path / "n").config["controls"] is False
    assert "Controls were not run" in (tmp_path / "n" / "report.html").read_text()


@pytest.mark.slow
def test_copies_do_not_judge(antiphase, tmp_path):
    (tmp_path / "twice.txt").write_text((tmp_path / "data.txt").read_text() * 2)
    (tmp_path / "twice.yaml").write_text(yaml.safe_dump({"template": "cr", "data": "twice.txt"}))
    words = "--task twice.yaml --samples 48 --held-out 0.7 --alpha 1.2 --layers 1"
    code, out, _ = antiphase(f"calibrate search model {words} --output s")
    assert code == 0
    found = values(tmp_path / "s")
    copies = found["left_out"]["twice"]
    assert copies > 0
    assert (
        f"twice: {copies} of 34 held-out samples are copies of samples that choose heads, or of each other, and"
        in " ".join(out.split())
    )
    assert f"judge nothing: {copies} of twice." in " ".join(out.split())
    samples = load_task(str(tmp_path / "twice.yaml"), tokenizer_of(tmp_path), samples=48).samples
    chosen = {hash_of_sample(samples[i]) for i in found["search_samples"]["twice"]}
    others = list({hash_of_sample(one): one for one in samples if hash_of_sample(one) not in chosen}.values())
    assert copies == 34 - len(others)
    right = sum(score_samples(LlamaForCausalLM.from_pretrained(tmp_path / "model").eval(), others).tolist())
    assert found["held_out_before"] == pytest.approx(right / len(others))
    assert found["measures"]["twice"]["accuracy"] == pytest.approx(right / len(others))
    assert antiphase(f"calibrate study model {words} --only beta --output t")[0] == 0
    assert values(tmp_path / "t")["left_out"]["twice"] == copies
    assert f"judge nothing: {copies} of twice." in (tmp_path / "t" / "report.html").read_text()
    assert antiphase(f"calibrate study model {words} --score probability --only heads --output h")[0] == 0
    rows = values(tmp_path / "h")["heads"]["rows"]
    assert max(row["improved"] + row["worsened"] for row in rows) == 24  # of 48 samples, each text once


@pytest.mark.slow
def test_a_killed_search_goes_on(antiphase, tmp_path, monkeypatch):
    assert antiphase(f"{SEARCH} --output whole")[0] == 0
    lines = read_lines(tmp_path / "whole" / "heads.jsonl")
    assert len(lines) == 8
    real, seen = searching.append_line, []

    def killed(path, line):
        real(path, line)
        seen.append(line)
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(searching, "append_line", killed)
    with pytest.raises(KeyboardInterrupt):
        searching.search(SearchSettings(name="model", tasks=["task.yaml"], samples=24, alpha=1.2), tmp_path / "part")
    with open(tmp_path / "part" / "heads.jsonl", "ab") as file:
        file.write(b'{"layer": 0, "hea')  # the kill came in the middle of a line
    code, _, err = antiphase(f"{SEARCH} --output part")
    assert code == 2
    assert "add --resume" in err
    monkeypatch.setattr(searching, "append_line", lambda path, line: (seen.append(line), real(path, line)))
    assert antiphase(f"{SEARCH} --output part --resume")[0] == 0
    assert len(seen) == 8  # none was measured twice
    assert read_lines(tmp_path / "part" / "heads.jsonl") == lines
    for name in ("heads", "heads_alone", "held_out_gain"):
        assert values(tmp_path / "part")[name] == values(tmp_path / "whole")[name]


def test_another_search_in_the_same_folder_is_refused(antiphase, refused, tmp_path, calibration_model):
    assert antiphase(f"{SEARCH} --layers 1 --output s")[0] == 0
    refused("other settings \\(layers\\)", f"{SEARCH} --output s --resume")
    lines = (tmp_path / "data.txt").read_text().splitlines()
    (tmp_path / "data.txt").unlink()
    (tmp_path / "data.txt").write_text("\n".join(lines[::-1]) + "\n")
    refused("the tasks' data has changed since", f"{SEARCH} --layers 1 --output s --resume")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cached", "screen"])
def test_methods(method, antiphase, tmp_path):
    assert antiphase(f"{SEARCH} --method {method} --score probability --output s")[0] == 0
    found = values(tmp_path / "s")
    assert found["evaluations"] == {"cached": 8, "screen": 4}[method]
    cells = read_lines(tmp_path / "s" / "cells.jsonl")
    drawn = [head for cell in cells if "random heads" in cell["key"] for head in json.loads(cell["key"])[1]]
    tried = {f"{layer}.{head}" for layer, head in drawn}
    assert drawn
    assert len(tried) == 8  # random heads are drawn from all, those that the screen did not try as well


def test_lower_layers_cannot_run_once_for_generated_answers(calibration_model):
    """That is said before anything is scored."""
    sample = load_task(str(calibration_model / "task.yaml"), tokenizer_of(calibration_model)).samples[0]
    settings = SearchSettings(name="model", tasks=["task.yaml"], method="cached")
    open_answer = replace(sample, answers=("glad",), longest=2)
    searching._check_method(settings, {"cr": [sample, replace(open_answer, longest=1)]})
    searching._check_method(replace(settings, method="exhaustive"), {"cr": [open_answer]})
    with pytest.raises(InputError, match=r"^--method cached cannot score the open answers of cr"):
        searching._check_method(settings, {"cr": [sample, open_answer]})


def test_flags_name_the_methods_and_scores_that_there_are():
    flags = flags_of(SearchSettings)
    assert flags["method"].choices == METHODS
    assert flags["score"].choices == tuple(SCORES)


def test_apply_knows_samples_behind_other_examples(antiphase, refused, tmp_path):
    """A row that chose heads is left out with other shots as well; where nothing is left there is no judgement."""
    assert antiphase(f"{SEARCH} --output s")[0] == 0
    apply = "calibrate apply model --plan s/plan.json --task task.yaml"
    assert antiphase(f"{apply} --samples 24 --shots 1 --output a")[0] == 0
    row = values(tmp_path / "a")["tasks"][0]
    assert row["samples"] + row["left_out"] == 23
    assert row["left_out"] in (11, 12)
    refused(
        "--task cr: [0-9] samples are left to measure the gain, but 10 are needed", f"{apply} --samples 12 --output b"
    )


def test_apply_compares_the_model_with_the_plan_and_without(antiphase, tmp_path, monkeypatch):
    """Scores and texts of the second column are made within the calibrated block, those of the first outside."""
    CalibrationPlan({0: [1]}).save(tmp_path / "p.json")
    inside = []

    @contextmanager
    def calibrated(model, plan):
        inside.append(plan.heads)
        yield
        inside.clear()

    def scored(model, tasks, *, stepwise, where):
        values = {name: [0.75 if inside else 0.25] * len(task.samples) for name, task in tasks.items()}
        return {"metric": values, "log_probability": values, "labels": {}, "content_free": {}}

    monkeypatch.setattr(applying, "calibrated", calibrated)
    monkeypatch.setattr(applying, "scored", scored)
    monkeypatch.setattr(applying, "generated_tokens", lambda *a, **k: [[40 if inside else 41]])
    apply = "calibrate apply model --plan p.json --task task.yaml --samples 24 --text glad --output a"
    assert antiphase(apply)[0] == 0
    row, text = values(tmp_path / "a")["tasks"][0], values(tmp_path / "a")["texts"][0]
    assert (row["score"], row["calibrated"], row["gain"], row["improved"]) == (0.25, 0.75, 0.5, 24)
    assert text["plain"] != text["calibrated"]


@pytest.mark.parametrize(("mode", "stepwise"), [("paper", True), ("prompt", False), ("running", False)])
def test_labels_are_fed_one_by_one_where_a_calls_own_queries_choose_sinks(mode, stepwise):
    assert by_mode(lambda **settings: settings, mode)() == {"stepwise": stepwise}


def test_samples_are_known_by_what_was_asked_and_what_is_right(calibration_model):
    sample = load_task(str(calibration_model / "task.yaml"), tokenizer_of(calibration_model)).samples[0]
    assert hash_of_sample(sample) == hash_of_sample(replace(sample, row=7))
    turned = replace(sample, options=sample.options[::-1], target=1 - sample.target)
    assert hash_of_sample(sample) == hash_of_sample(turned)
    in_chat = replace(sample, decode=lambda ids: f" {sample.decode(ids)}")  # labels of a chat have no space before them
    assert hash_of_sample(sample) == hash_of_sample(in_chat)
    others = [
        replace(sample, target=1 - sample.target), replace(sample, answers=("glad",)),
        replace(sample, prompt=(*sample.prompt[:-1], 5)),
    ]  # fmt: skip
    assert len({hash_of_sample(one) for one in (sample, *others)}) == 4


def test_work_does_not_continue_on_another_kind_of_device(antiphase, refused, tmp_path):
    """Cells of both would be subtracted from each other."""
    assert antiphase(f"{SEARCH} --output s")[0] == 0
    (tmp_path / "s" / "record.json").unlink()
    request = tmp_path / "s" / "request.json"
    request.write_text(request.read_text().replace('"kind of device": "cpu"', '"kind of device": "cuda"'))
    refused("--output s: --device names another kind of device since this work began", f"{SEARCH} --output s --resume")


def test_a_plan_that_does_not_say_what_chose_its_heads_is_named(antiphase, tmp_path):
    CalibrationPlan({0: [1]}).save(tmp_path / "p.json")
    code, out, _ = antiphase("calibrate apply model --plan p.json --task task.yaml --samples 24 --output a")
    assert code == 0
    assert "--plan does not say which samples chose its heads, so none is left out" in " ".join(out.split())


@pytest.mark.slow
def test_a_study_goes_on_with_more_parts(antiphase, tmp_path):
    words = "calibrate study model --task task.yaml --samples 24 --alpha 1.2 --output s"
    assert antiphase(f"{words} --only beta")[0] == 0
    cells = (tmp_path / "s" / "cells.jsonl").read_text()
    assert antiphase(f"{words} --only beta,heads --resume")[0] == 0
    assert (tmp_path / "s" / "cells.jsonl").read_text() == cells
    assert set(values(tmp_path / "s")) >= {"heads", "rows"}


def test_models_that_cannot_be_calibrated_are_refused_before_anything_is_scored(refused, tmp_path, calibration_model):
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=len(tokenizer_of(calibration_model)), hidden_size=16, num_hidden_layers=1)
    MambaForCausalLM(config).save_pretrained(tmp_path / "mamba")
    tokenizer_of(calibration_model).save_pretrained(tmp_path / "mamba")
    for words in ("search mamba", "study mamba"):
        refused("type mamba have no attention heads", f"calibrate {words} --task task.yaml --samples 24 --output s")


def test_apply_refuses_a_model_with_a_state_before_it_scores_anything(
    refused, tmp_path, calibration_model, monkeypatch
):
    tokenizer = tokenizer_of(calibration_model)
    config = Lfm2Config(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=16, layer_types=["conv", "full_attention"],
    )  # fmt: skip
    Lfm2ForCausalLM(config).save_pretrained(tmp_path / "lfm2")
    tokenizer.save_pretrained(tmp_path / "lfm2")
    CalibrationPlan({1: [0]}).save(tmp_path / "p.json")
    monkeypatch.setattr(applying, "scored", None)
    refused("type lfm2 carry a state", "calibrate apply lfm2 --plan p.json --task task.yaml --samples 24 --output a")


def test_a_copy_in_half_precision_is_the_same_model(antiphase, refused, tmp_path, calibration_model):
    model = LlamaForCausalLM.from_pretrained(calibration_model / "model")
    plan = CalibrationPlan({0: [1]}, fingerprint=fingerprint(model))
    for dtype in (torch.float16, torch.bfloat16):
        plan.check(model.to(dtype))
        model = LlamaForCausalLM.from_pretrained(calibration_model / "model")
    CalibrationPlan({0: [1]}, fingerprint=fingerprint(model.half())).check(model.float())  # and the other way
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    model.save_pretrained(tmp_path / "other")
    tokenizer_of(calibration_model).save_pretrained(tmp_path / "other")
    plan.save(tmp_path / "p.json")
    refused("p.json: the plan was made for another model: the weights differ\n",
            "calibrate apply other --plan p.json --text glad --output s")  # fmt: skip


def test_bad_requests(antiphase, refused, tmp_path):
    refused("--task is missing", "calibrate search model --output s")
    refused("--task none.yaml: there is no such file", "calibrate search model --task none.yaml --output s")
    refused("--samples must be at least 2", f"{SEARCH} --samples 1 --output s")
    refused("--method must be one of exhaustive, cached, screen", f"{SEARCH} --method best --output s")
    refused("--score must be one of metric, probability", f"{SEARCH} --score f --output s")
    refused("--held-out must lie between 0 and 1", f"{SEARCH} --held-out 1 --output s")
    refused("--layers must be numbers and ranges", f"{SEARCH} --layers x --output s")
    refused("--layers has a range that ends before it begins, '9-5'; write 5-9", f"{SEARCH} --layers 2,9-5 --output s")
    refused("--layers names more than 10,000 numbers", f"{SEARCH} --layers 0-99999999999999999999 --output s")
    refused("--task cr: 5 samples are left to measure the gain, but 10 are needed", f"{SEARCH} --samples 10 --output s")
    refused("--layers names layer 7, but the model's layers are 0 to 1", f"{SEARCH} --layers 0-7 --output s")
    refused("beta must be above 0 and at most 1", f"{SEARCH} --beta 0 --output s")
    refused("alpha must be above 0", f"{SEARCH} --alpha 0 --output s")
    refused("mode must be one of paper, prompt, running", f"{SEARCH} --mode promt --output s")
    refused("prompt has .* the model reads 80 at most", f"{SEARCH} --shots 9 --output s")
    (tmp_path / "p.json").write_text(json.dumps({"format": 1, "heads": {"0": [9]}}))
    apply = "calibrate apply model --plan p.json"
    refused("--plan p.json: the plan names head 9 of layer 0", f"{apply} --text hi --output s")
    refused("--task or --text is missing", f"{apply} --output s")
    (tmp_path / "p.json").write_text(json.dumps({"format": 1, "heads": {"0": [1]}, "fingerprint": {"hidden_size": 5}}))
    refused("--plan p.json: the plan was made for another model", f"{apply} --text hi --output s")
    (tmp_path / "p.json").write_text(json.dumps({"format": 1, "heads": {"0": [1]}}))
    refused("antiphase: --text: .* more than the 80 it can read",
            f"{apply} --text hi --max-new-tokens 90 --output s")  # fmt: skip
    refused("--only must name some of heads", "calibrate study model --task task.yaml --only alphas --output s")
    refused("--only must name some of heads", "calibrate study model --task task.yaml --only= --output s")
    refused("--mode must be paper or prompt", "calibrate study model --task task.yaml --mode running --output s")
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_tasks_at_chance_are_not_searched(antiphase, refused, tmp_path):
    (tmp_path / "noise.txt").write_text("".join(f"{i % 2} the log {i}\n" for i in range(24)))
    (tmp_path / "noise.yaml").write_text(yaml.safe_dump({"template": "mpqa", "data": "noise.txt"}))
    words = "model --task noise.yaml --samples 24 --output s"
    refused(r"is not shown to be better than chance \(noise: ", f"calibrate search {words}")
    refused("--task noise: .* % of 24 samples is not shown to be above chance", f"calibrate study {words}")
    assert antiphase(f"{SEARCH} --task noise.yaml --output s")[0] == 0
    assert [row["above_chance"] for row in values(tmp_path / "s")["tasks"]] == [True, False]
    assert values(tmp_path / "s")["samples"] == {"cr": 24}


def test_logits_that_are_not_finite_stop_the_search(antiphase, refused, tmp_path, calibration_model):
    model = LlamaForCausalLM.from_pretrained(calibration_model / "model")
    with torch.no_grad():  # finite weights, whose products are not
        for part in (model.model.layers[0].self_attn.q_proj, model.model.layers[0].self_attn.k_proj):
            part.weight.copy_(torch.where(part.weight < 0, -3e38, 3e38))
    model.save_pretrained(tmp_path / "broken")
    tokenizer_of(calibration_model).save_pretrained(tmp_path / "broken")
    refused(
        "the score of sample [0-9]+ of cr \\(from 0\\) is nan",
        "calibrate search broken --task task.yaml --samples 24 --output s",
    )


def test_results_survive_a_refusal(antiphase, tmp_path, monkeypatch):
    """A score that fails at the fifth head leaves the four before it on disk."""
    from antiphase.calibration import search

    real, calls = search.scores_of, []

    def fail(*arguments):
        calls.append(arguments)
        if len(calls) == 7:  # the first two are the score without calibration, and rounding
            raise ValueError("the score of sample 3 of cr (from 0) is nan")
        return real(*arguments)

    monkeypatch.setattr(search, "scores_of", fail)
    code, _, err = antiphase(f"{SEARCH} --output s")
    assert (code, "antiphase: MODEL model: the score of sample 3 of cr" in err) == (2, True)
    assert len(read_lines(tmp_path / "s" / "heads.jsonl")) == 4
    monkeypatch.setattr(search, "scores_of", real)
    assert antiphase(f"{SEARCH} --output s --resume")[0] == 0
    assert len(read_lines(tmp_path / "s" / "heads.jsonl")) == 8


def test_one_search_in_a_folder_at_a_time(refused, tmp_path):
    from antiphase.base.folders.ownership import only_one

    with only_one(tmp_path / "s"):
        refused("is in use by another process", f"{SEARCH} --output s")


def tokenizer_of(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder / "model")


@pytest.mark.slow
def test_study(antiphase, tmp_path, calibration_model):
    words = "calibrate study model --task task.yaml --samples 24 --alpha 1.2 --shots 1 --score probability"
    code, out, _ = antiphase(f"{words} --output s")
    assert code == 0, out
    found = values(tmp_path / "s")
    heads = found["heads"]
    assert heads["improved"] + heads["tied"] + heads["worsened"] == pytest.approx(1)
    assert heads["null_improved"] + heads["null_tied"] + heads["null_worsened"] == pytest.approx(1)
    assert len(heads["rows"]) == 8
    assert found["screen"]["evaluations_share"] <= 0.5
    rows = found["rows"]
    parts = {"kept heads", "screen", "temperature", "inverse", "redistribution", "alpha", "beta", "samples",
             "controls", "shots"}  # fmt: skip
    assert parts <= set(rows)
    assert rows["kept heads"][0]["heads"] > 0
    assert rows["kept heads"][0]["gain"] != 0
    assert [row["value"] for row in rows["beta"]] == [0.1, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert rows["beta"][-1]["gain"] == pytest.approx(0, abs=1e-6)  # β = 1 changes nothing
    assert next(row for row in rows["beta"] if row["value"] == 0.4)["gain"] == rows["kept heads"][0]["gain"]
    assert {row["setting"] for row in rows["redistribution"]} == {
        "proportional",
        "uniform",
        "question",
        "demonstrations",
    }
    proportional = next(row for row in rows["redistribution"] if row["setting"] == "proportional")
    assert proportional["gain"] == pytest.approx(rows["kept heads"][0]["gain"], abs=1e-6)
    assert len({row["gain"] for row in rows["redistribution"]}) > 1
    assert rows["subsets"][-1]["gain"] == rows["kept heads"][0]["gain"]
    assert rows["samples"][-1]["gain"] == rows["kept heads"][0]["gain"]
    cells = (tmp_path / "s" / "cells.jsonl").read_text()
    code, _, _ = antiphase(f"{words} --output s --resume")
    assert code == 0
    assert (tmp_path / "s" / "cells.jsonl").read_text() == cells  # nothing is evaluated twice
    assert values(tmp_path / "s") == found
    page = write_report([Record.load(tmp_path / "s")], tmp_path / "page.html").read_text()
    for title in ("Each head alone", "The gradient screen", "What each setting does", "Sweeps"):
        assert title in page
