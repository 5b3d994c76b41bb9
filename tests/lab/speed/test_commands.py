"""``antiphase benchmark`` from flag to record, tables and figure, in small sizes."""

import copy
import subprocess
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from antiphase.attention.forward_pass import ForwardPass
from antiphase.lab.pages import benchmarks, figures, summary
from antiphase.lab.speed import attention, calibration, conditions, model
from antiphase.lab.speed.conditions import Condition
from antiphase.lab.speed.schemes import COMPARED, OURS, OURS_V2, WITH_NATIVE, Case
from antiphase.models import transformer

pytestmark = pytest.mark.slow


def test_attention(monkeypatch):
    small = [
        Case(n, 2, 64, dtype, task) for task in COMPARED for dtype in (torch.float32, torch.bfloat16) for n in (40, 70)
    ]
    suite = replace(
        attention.suite_of("cpu", quick=False), cells=[*small, Case(40, 2, 8, torch.float32, "forward")],
        memory_cells=[Case(70, 2, 64, torch.float32, "forward")],
        conditions=[Condition(1, False), Condition(2, True)],
        cells_by_condition=[Case(40, 2, 64, torch.float32, task) for task in ("forward", "decode")],
    )  # fmt: skip
    monkeypatch.setattr(attention, "suite_of", lambda device, *, quick: suite)
    monkeypatch.setattr(attention, "CELL_SECONDS", 0.02)
    monkeypatch.setattr(attention, "STEPS_OF_DECODING", 2)
    monkeypatch.setattr(attention, "peak_extra_bytes", lambda scheme, case, seed: len(scheme.name))
    record = attention.benchmark_attention(quick=False)
    rows = record.values["rows"]
    keys = {(row["task"], row["dtype"], row["length"], row["width"], row["subject"], row["baseline"]) for row in rows}
    assert len(keys) == len(rows)
    compared = {task: [(s.name, b.name) for s, others in pairs for b in others] for task, pairs in COMPARED.items()}
    for case in small:
        names = [(row["subject"], row["baseline"]) for row in rows
                 if (row["task"], row["dtype"], row["length"], row["width"])
                 == (case.task, str(case.dtype).removeprefix("torch."), case.length, 64)]  # fmt: skip
        skipped = {torch.bfloat16: "two calls", torch.float32: "fp32 cache"}[case.dtype]
        assert names == [pair for pair in compared[case.task] if skipped not in pair[1]]
    for row in rows:
        assert row["quartiles"][0] <= row["ratio"] <= row["quartiles"][1]
        rate = record.values["product_rate"][row["dtype"]]
        assert row["share_of_product_rate"] == pytest.approx(row["flops"] / row["subject_seconds"] / rate)
        assert row["share_of_product_rate"] > 0
    assert [row["scheme"] for row in record.values["memory"]][:2] == ["V1", "softmax"]
    time, under, memory = summary.main_tables(record)
    assert len(time.rows) == len(small) + 1
    against = ["softmax", *(scheme.name for scheme in WITH_NATIVE)]
    portable = ["V1 blockwise"] if WITH_NATIVE else []
    expected = [("forward", name) for name in (*against, *portable)] + [("decode", name) for name in against]
    assert [row[0] for row in under.rows] == [f"{task}, fp32, N = 40: V1 / {name}" for task, name in expected]
    assert [column.name for column in under.columns] == ["What", "1 thread", "2 threads beside a busy process"]
    assert all(cell for row in under.rows for cell in row)
    assert [column.name for column in time.columns].count("V1 / softmax") == 1
    steps = [row for row in rows if (row["task"], row["dtype"], row["length"], row["subject"])
             == ("decode", "bfloat16", 70, "V1") and row["baseline"].startswith("softmax")]  # fmt: skip
    assert len(steps) == 5
    (shown,) = [row[1] for row in time.rows if row[0] == "decode, bf16, N = 70"]
    assert shown == f"{min(steps, key=lambda row: row['baseline_seconds'])['ratio']:.2f}"
    whole = benchmarks.timing(record)
    assert len(whole.rows) == len(rows)
    assert any("d = 8" in row[0] for row in whole.text())
    assert len(memory.rows) == 4 + len(WITH_NATIVE)
    figure = figures.figures_of(record)["benchmark"]
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [f"{task}, {dtype}" for dtype in ("fp32", "bf16") for task in COMPARED]


def test_a_condition_holds_as_long_as_its_block(monkeypatch):
    begun = []
    popen = subprocess.Popen
    monkeypatch.setattr(conditions.subprocess, "Popen", lambda command: begun.append(popen(command)) or begun[-1])
    before = torch.get_num_threads()
    with Condition(before + 1, True).holds():
        assert torch.get_num_threads() == before + 1
        assert [process.poll() for process in begun] == [None]
    assert torch.get_num_threads() == before
    assert begun[0].returncode is not None
    with Condition(1, False).holds():
        assert len(begun) == 1


def test_the_least_bytes_are_those_of_inputs_and_output():
    case = Case(100, 8, 64, torch.float32, "forward")
    assert OURS.least_bytes(case) == 4 * 4 * 100 * 16 * 64  # query, key, value, output
    assert OURS_V2.least_bytes(case) == 4 * 100 * 64 * (16 + 8 + 8 + 8)
    assert OURS.least_bytes(replace(case, task="forward + backward")) == 3 * OURS.least_bytes(case)
    assert OURS.least_bytes(replace(case, task="decode")) == 4 * 64 * 16 * (2 + 200)


def test_model(monkeypatch):
    monkeypatch.setattr(model, "NEW_TOKENS", 3)
    monkeypatch.setattr(
        model, "setting_of", lambda device: model.Setting(model.SIZES, (16, 20, 32), 64, pairs=model.PAIRS_ON_CPU)
    )
    record = model.benchmark_model(quick=True)
    tasks = ("training step", "prefill", "tokens generated")
    assert [(row["task"], row["length"]) for row in record.values["rows"][:: len(model.PAIRS_ON_CPU)]] == [
        (task, length) for task, length in [(tasks[0], 16), (tasks[0], 32), (tasks[1], 16), (tasks[2], 16),
                                            (tasks[1], 32), (tasks[2], 32)]
    ]  # fmt: skip
    parameters = record.values["parameters"]
    assert parameters["Llama"] == parameters["antiphase softmax"]
    table, throughput = summary.main_tables(record)
    assert (len(table.rows), len(table.columns)) == (6, 1 + len(model.PAIRS_ON_CPU))
    assert [row[0] for row in throughput.rows] == ["training step"] * 2 + ["prefill"] * 2 + [
        f"the paper, {what}" for what in ("forward + backward", "forward") for _ in range(3)
    ]
    first = record.values["rows"][3]
    assert (first["subject"], first["baseline"]) == ("antiphase differential", "antiphase softmax")
    assert throughput.rows[0][2:5] == [16, 64 / first["baseline_seconds"], 64 / first["subject_seconds"]]
    assert throughput.rows[0][-1] == 1 / first["ratio"]
    prefill = next(row for row in record.values["rows"] if row["task"] == "prefill" and row["length"] == 32)
    assert throughput.rows[3][4] == 32 / prefill["subject_seconds"]
    assert [axes.get_title() for axes in figures.figures_of(record)["benchmark"].axes] == [f"{t}, fp32" for t in tasks]


def test_a_decoding_round_leaves_the_cache_as_it_was(monkeypatch):
    monkeypatch.setattr(model, "NEW_TOKENS", 5)
    prompt = torch.randint(0, 4096, (1, 12), generator=torch.Generator().manual_seed(0))
    for built in model.models_of(0, model.Setting(model.SIZES, (64,), 64), "cpu").values():
        run = model.decoding(built, prompt)
        assert torch.equal(run(), run())


TINY = model.Setting(
    {**model.SIZES, "vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
     "num_attention_heads": 4},
    (16, 32), 32, is_half=True, is_compiled=True, pairs=model.PAIRS_ON_GPU,
)  # fmt: skip


def test_models_are_built_where_no_length_is_timed():
    """A gate that was left out for want of time; the record says so."""
    assert model.models_of(0, replace(TINY, lengths=()), "cpu").keys() == model.models_of(0, TINY, "cpu").keys()


@pytest.fixture
def tiny(monkeypatch):
    """The way of a GPU, in half precision and compiled, with a compiler that needs none of its own."""
    monkeypatch.setattr(model, "NEW_TOKENS", 3)
    monkeypatch.setattr(model, "setting_of", lambda device: TINY)
    monkeypatch.setattr(model, "compiled", lambda built, *mode: torch.compile(built, backend="eager"))
    with model.fresh_compiler():
        yield model.models_of(0, TINY, "cpu")


def test_model_in_half_precision_and_compiled(tiny):
    rows = model.benchmark_model(quick=False).values["rows"]
    count, steps, decoding = len(model.PAIRS_ON_GPU), len(model.COMPILED_STEPS), len(model.COMPILED_DECODING)
    assert [(row["task"], row["length"]) for row in rows] == [
        *[("training step", length) for length in TINY.lengths for _ in range(count + steps)],
        *[(task, length) for length in TINY.lengths
          for task, times in (("prefill", count), ("tokens generated", count + decoding)) for _ in range(times)],
    ]  # fmt: skip
    assert {row["dtype"] for row in rows} == {"bfloat16"}
    compiled = [(row["subject"], row["baseline"]) for row in rows if row["subject"].endswith(model.COMPILED)]
    assert compiled == 2 * list(model.COMPILED_STEPS) + 2 * list(model.COMPILED_DECODING)


def test_a_compiled_step_has_no_mask_of_all_pairs(tiny, monkeypatch):
    """FlashAttention-2, with which the compiled softmax model is timed too, cannot take one. Before PyTorch 2.14
    transformers forms it, as here.
    """
    masks = []

    def look(graph, inputs):
        found = [node for node in graph.graph.nodes if "scaled_dot_product_attention" in str(node.target)]
        masks.extend((node.kwargs["attn_mask"], node.kwargs["is_causal"]) for node in found)
        return graph.forward

    def of_all_pairs(**given):
        length = given["inputs_embeds"].shape[1]
        return torch.ones(1, 1, length, length, dtype=torch.bool).tril()

    softmax = tiny[model.SOFTMAX]
    softmax.set_attn_implementation("sdpa")
    ids = torch.randint(0, 50, (2, 16), generator=torch.Generator().manual_seed(0))
    expected = model.training_step(copy.deepcopy(softmax), ids, is_half=True)().item()
    monkeypatch.setitem(transformer.MASKS, "full_attention", of_all_pairs)
    monkeypatch.setattr(model, "compiled", lambda built: torch.compile(built, backend=look, dynamic=False))
    (step,) = model._steps({model.SOFTMAX: softmax}, ids, TINY, is_compiled=True).values()
    assert step().item() == pytest.approx(expected, rel=1e-3)
    assert masks == [(None, True)] * softmax.config.num_hidden_layers


def test_steps_in_half_precision_learn(tiny):
    ids = torch.randint(0, 50, (2, 16), generator=torch.Generator().manual_seed(0))
    for built in tiny.values():
        step = model.training_step(built, ids, is_half=True)
        losses = [step().item() for _ in range(4)]
        assert all(after < before for before, after in pairwise(losses))


def test_a_compiled_decoding_round_gives_the_tokens_of_the_plain_one(tiny):
    prompt = torch.randint(0, 50, (1, 12), generator=torch.Generator().manual_seed(0))
    for name in (model.OURS, model.OURS_V2, model.SOFTMAX):
        plain, compiled = model.decoding(tiny[name], prompt), model.compiled_decoding(tiny[name], prompt)
        assert torch.equal(compiled(), plain())
        assert torch.equal(compiled(), plain())


def test_calibration(monkeypatch):
    monkeypatch.setattr(calibration, "LENGTHS", (64, 96))
    monkeypatch.setattr(calibration, "SEARCHED", {**calibration.SEARCHED, "num_hidden_layers": 2})
    monkeypatch.setattr(calibration, "PROMPTS", 3)
    monkeypatch.setattr(calibration, "SIZES", {**calibration.SIZES, "hidden_size": 64, "intermediate_size": 64})
    monkeypatch.setattr(calibration, "peak_of", lambda call, scheme, *rest, what: len(scheme))
    record = calibration.benchmark_calibration(quick=False)
    rows = record.values["rows"]
    assert [(row["task"], row["length"]) for row in rows] == [
        (f"prefill of a layer, {share} % sinks", length) for length in (64, 96) for share in (0, 5, 20)
    ] + [("decoding steps of a model", length) for length in (64, 96) for _ in calibration.MODES]
    times, search, memory = summary.main_tables(record)
    assert len(times.rows) == 8
    assert search.rows[0][:2] == ["search, every head tried alone", "lower layers run once / heads × a plain prefill"]
    assert [row[1] for row in memory.rows] == ["plain", "calibrated"] * 2 + ["plain", "probing"]


def test_a_search_that_finds_other_scores_is_not_timed(monkeypatch):
    real = calibration.each_alone

    def each_alone(*arguments, shares_lower):
        for head, found in real(*arguments, shares_lower=shares_lower):
            yield head, found + 1e-3 * shares_lower

    monkeypatch.setattr(calibration, "SEARCHED", {**calibration.SEARCHED, "num_hidden_layers": 2})
    assert len(calibration.search_calls(0)[calibration.SHARED]()) == 8
    monkeypatch.setattr(calibration, "each_alone", each_alone)
    with pytest.raises(RuntimeError, match="finds other scores"):
        calibration.search_calls(0)


@pytest.mark.parametrize("share", calibration.SHARES)
def test_the_threshold_makes_the_share_of_sinks_that_was_asked_for(share, monkeypatch):
    passes = []

    def kept(**fields):
        passes.append(ForwardPass(**fields))
        return passes[-1]

    monkeypatch.setattr(calibration, "ForwardPass", kept)
    given = calibration.layer_inputs(200, seed=0)
    run = calibration.layer_call(1 << 62, calibration.CALIBRATED, 200, share, 0)
    plain = calibration.layer_call(1 << 62, calibration.PLAIN, 200, share, 0)
    out, ordinary = run(), plain()[0]
    sinks = passes[-1].state.kept["sinks", 0][:, :, 0]  # (B, heads, keys)
    rate = sinks.transpose(1, 2)[given.real].double().mean()
    assert rate == pytest.approx(share, abs=0.01)
    rows = given.real[:, :, None, None].expand_as(out)
    assert torch.allclose(out[rows], ordinary[rows], atol=1e-5) == (share == 0)
