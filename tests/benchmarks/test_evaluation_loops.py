"""``benchmarks/evaluation_loops.py``: both ways give the planted answers, and what is asked for is in the record."""

import subprocess
import sys

import pytest

from antiphase.base.records import Record
from antiphase.lab.pages import summary
from antiphase.lab.pages.html import write_report
from benchmarks import evaluation_loops as loops
from support.paths import ROOT


def test_prompts_share_examples_within_an_order():
    by_order, labels = loops.sweep_prompts(100, 3, 7, 128, 0)
    assert labels == [0, 1, 2, 3, 4, 0, 1]
    shown = []
    for prompts in by_order:
        assert max(map(len, prompts)) == 100
        questions = [one[-loops.QUESTION[0] :] for one in prompts]
        assert questions == [one[-loops.QUESTION[0] :] for one in by_order[0]]
        assert [one[-1] - loops.FIRST_CUE for one in prompts] == labels
        shown.append(prompts[0][: 101 - loops.QUESTION[1] - 1])
        assert all(one[: len(shown[-1])] == shown[-1] for one in prompts)
    assert sorted(shown[0]) == sorted(shown[1]) == sorted(shown[2])
    assert shown[0] != shown[1]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_both_ways_give_the_planted_answers(seed):
    by_order, labels = loops.sweep_prompts(60, 2, 7, 128, seed)
    for model in loops.build_models(loops.QUICK, seed).values():
        for prompts in by_order:
            assert loops.chosen_by_loop(model, prompts) == labels
            assert loops.chosen_by_generate(model, prompts) == labels


def test_wrong_answers_are_not_timed(monkeypatch):
    monkeypatch.setattr(loops, "chosen_by_generate", lambda model, prompts: [0] * len(prompts))
    monkeypatch.setattr(loops, "paired_times", lambda *args, **kwargs: pytest.fail("timed"))
    model = loops.build_models(loops.QUICK, 0)[loops.LLAMA]
    with pytest.raises(RuntimeError, match="generate, one at a time, Llama, 48 tokens"):
        loops.sweeps(loops.LLAMA, model, loops.QUICK, 0, lambda message: None)


@pytest.mark.slow  # starts other processes
def test_a_quick_run_writes_a_record(tmp_path):
    command = [sys.executable, "-m", "benchmarks.evaluation_loops", "--quick", "--output", str(tmp_path / "run")]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    record = Record.load(tmp_path / "run")
    plan, values = loops.QUICK, record.values
    found = [(row["task"], row["length"], row["subject"], row["baseline"]) for row in values["rows"]]
    assert found == [
        *((f"many-shot sweep, {name}", length, loops.CHOOSE, loops.GENERATE)
          for name in (loops.OURS, loops.LLAMA) for length in plan.lengths),
        *((f"long prompts, {name}", length, way, loops.PREFILL)
          for name in (loops.OURS, loops.LLAMA) for length in plan.long_lengths for way in (loops.OWN, loops.SHARED)),
    ]  # fmt: skip
    for row in values["rows"]:
        assert row["rounds"] == plan.rounds
        assert row["speed_quartiles"][0] <= row["speed"] <= row["speed_quartiles"][1]
        assert min(row["subject_rate"], row["baseline_rate"]) > 0
    assert [row["length"] for row in values["memory"]] == list(plan.document_lengths)
    assert all(row["bytes_per_token"] == row["bytes"] / row["length"] > 0 for row in values["memory"])
    first, last = values["memory"][0], values["memory"][-1]
    assert values["memory_growth"] == pytest.approx(last["bytes_per_token"] / first["bytes_per_token"])
    lines = loops.table(values["rows"], values["memory"])
    assert all(line in said.stdout for line in lines)
    assert len(lines) == len(values["rows"]) + len(values["memory"])
    assert summary.main_tables(record)
    write_report([record], tmp_path / "report.html")
