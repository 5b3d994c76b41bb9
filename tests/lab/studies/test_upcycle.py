"""Continued training of a softmax model, as it is, as V2 and as V2's control."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from antiphase.base.errors import InputError
from antiphase.base.records import Record, dequantized
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.grid import Grid
from antiphase.lab.studies.training_run import curve_evaluations
from antiphase.lab.studies.upcycle.measure import DEX, V1, head_sizes, upcycle, upcycle_preset
from antiphase.lab.text.prepare import prepare
from antiphase.lab.text.tokenization import train_tokenizer
from antiphase.lab.training.loop import train
from support.models import OTHERS, save, small_llama, small_other

ARMS = ["softmax", "control", "differential_v2"]


def trained(folder, preset, *overrides, kind="softmax"):
    """A finished run of the tiny preset, seed 3."""
    run = load_preset(str(preset), [f"model.attention_type={kind}", "training.seed=3", *overrides]).run
    data = prepare(run.data, folder.parent / f"{folder.name}-tokens")
    train(run, data, folder, evaluations=curve_evaluations(run, data))
    return str(folder)


def test_three_arms_of_the_sizes_that_conversion_gives(tiny_preset, tmp_path):
    model = trained(tmp_path / "run", tiny_preset, "model.num_key_value_heads=2")
    preset = upcycle_preset(model, tmp_path / "up", ["training.steps=7", "compare.arms.control.training.clip=2.0"])
    jobs = Grid(preset, tmp_path / "up").jobs
    assert [job.arm for job in jobs[:3]] == ARMS
    assert [job.seed for job in jobs[::3]] == [4, 5, 6]  # those after the model's own
    sizes = {job.arm: job.settings.model for job in jobs}
    assert [(m.num_attention_heads, m.num_key_value_heads, m.head_dim) for m in sizes.values()] == [
        (4, 2, 4), (8, 2, 4), (8, 2, 4)
    ]  # fmt: skip
    assert [m.attention_type for m in sizes.values()] == ["softmax", "softmax", "differential_v2"]
    assert {job.settings.training.steps for job in jobs} == {7}
    assert [job.settings.training.clip for job in jobs[:3]] == [1.0, 2.0, 1.0]
    assert len({job.settings.training.start_from for job in jobs}) == 3
    shared = {json.dumps([vars(job.settings.data), vars(job.settings.evaluation)], sort_keys=True) for job in jobs}
    assert len(shared) == 1


def test_the_study_may_have_any_name(tiny_preset, tmp_path):
    model, study = trained(tmp_path / "run", tiny_preset), tmp_path / "größer 🙂"
    arms = upcycle_preset(model, study).compare.arms
    assert [str(Path(arm["training.start_from"]).parents[1]) for arm in arms.values()] == [str(study)] * 3


@pytest.mark.slow
def test_unsuitable_models_are_refused(tiny_preset, tmp_path):
    with pytest.raises(InputError, match=r"model .*config\.json is missing"):
        upcycle_preset(str(tmp_path), tmp_path / "up")
    model = trained(tmp_path / "differential", tiny_preset, kind="differential")
    with pytest.raises(InputError, match="is not a softmax model"):
        upcycle_preset(model, tmp_path / "up")
    model = trained(tmp_path / "run", tiny_preset)
    with pytest.raises(InputError, match=r"--seeds must not hold 3"):
        upcycle_preset(model, tmp_path / "up", ["compare.seeds=[1,3]"])
    for change, words in (
        ("data.numbers=10", "data.numbers must stay 9"),
        ("compare.arms.foo.model.attention_type=softmax", "compare.arms.foo does not start from"),
        ("compare.arms.foo.training.clip=1", "compare.arms.foo: there is no such arm; known: .*softmax"),
        ("compare.arms={a: {}, b: {}}", "compare.a.*the arm"),
    ):
        with pytest.raises(InputError, match=words):
            upcycle_preset(model, tmp_path / "up", [change])
    (tmp_path / "run" / "config.json").rename(tmp_path / "config.json")
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"model .*config\.json cannot be used"):
        upcycle_preset(model, tmp_path / "up")
    (tmp_path / "config.json").replace(tmp_path / "run" / "config.json")
    sizes = ["model.hidden_size=20", "model.num_hidden_layers=4", "model.rms_norm_eps=1e-2", "model.head_dim=4"]
    named = (
        r"--set cannot change model \S+: model.hidden_size=20 \(it has 16\), model.num_hidden_layers=4 \(it has 2\), "
        r"model.rms_norm_eps=1e-2 "
    )
    with pytest.raises(InputError, match=named):
        upcycle_preset(model, tmp_path / "up", sizes)
    same = ["model.hidden_size=16", "model.rms_norm_eps=1e-6", "model.tie_word_embeddings=true"]
    assert upcycle_preset(model, tmp_path / "up", same).run.model.hidden_size == 16
    assert not (tmp_path / "up").exists()


@pytest.mark.slow
def test_a_model_from_elsewhere_brings_its_sizes_and_tokenizer(tmp_path, generated_text):
    text = tmp_path / "text.txt"
    text.write_text(generated_text)
    tokenizer = train_tokenizer([generated_text], vocabulary_size=300)
    llama = small_llama(tokenizer, num_key_value_heads=1, rms_norm_eps=1e-4, tie_word_embeddings=False)
    llama.config.dequantized_from = "Q4_1"
    model = str(save(llama, tokenizer, tmp_path / "llama"))
    with pytest.raises(InputError, match=r"was not trained here; give text to train it on with --data"):
        upcycle_preset(model, tmp_path / "up")
    small = [
        "training.steps=2", "training.warmup_steps=1", "data.sequence_length=192", "training.batch_size=2",
        "evaluation.samples=2", "evaluation.curve_samples=2", "compare.processes=1",
    ]  # fmt: skip
    preset = upcycle_preset(model, tmp_path / "up", small, data=[str(text)])
    assert (preset.run.model.rms_norm_eps, preset.run.model.tie_word_embeddings) == (1e-4, False)
    assert preset.run.model.max_position_embeddings == llama.config.max_position_embeddings
    record = upcycle(model, tmp_path / "up", preset)
    assert record.values["guess_rate"] == 0.25
    assert record.origins() == [f"What the runs start from: the weights were {dequantized('Q4_1')}."]
    starts = [run["curve"][0]["loss"] for run in record.values["runs"]]
    assert starts == pytest.approx([starts[0]] * 3, abs=1e-5)
    assert record.values["untrained"] == "the checkpoints from which training started"
    before = [row["loss"] for row in record.values["perplexity"] if not row["trained"]]
    assert before == pytest.approx(starts, abs=1e-4)
    ids = torch.tensor([tokenizer("Hello there").input_ids])
    first = AutoModelForCausalLM.from_pretrained(tmp_path / "up" / "start" / "differential_v2")
    torch.testing.assert_close(first(ids).logits, llama(ids).logits, rtol=1e-4, atol=1e-5)


SMALL = [
    "training.steps=2", "training.warmup_steps=1", "data.sequence_length=192", "training.batch_size=2",
    "evaluation.samples=2", "evaluation.curve_samples=2", "evaluation.validation_sequences=4", "compare.processes=1",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS)
def test_converted_folders_of_other_architectures_bring_their_fields_to_training(
    tmp_path, generated_text, antiphase, kind
):
    """Softmax, V2 and DEX begin as the source's function, by which loss and logits are measured."""
    text = tmp_path / "text.txt"
    text.write_text(generated_text)
    tokenizer = train_tokenizer([generated_text], vocabulary_size=300)
    theirs = small_other(kind, tokenizer)
    model = save(theirs, tokenizer, tmp_path / "theirs")
    ids = torch.tensor([tokenizer("Hello there, and so on").input_ids])
    of_runs = [word for word in SMALL if not word.startswith("compare.")]
    words = [part for word in (*of_runs, "training.learning_rate=1e-12") for part in ("--set", word)]
    losses = []
    for name in ("", "--attention-type differential_v2", "--attention-type dex"):
        ours, run = tmp_path / f"ours{name[-3:]}", tmp_path / f"run{name[-3:]}"
        code, _, err = antiphase("convert", model, ours, name)
        assert code == 0, err
        own = ["--set", "model.dex_steps=2"] if name.endswith("dex") else []
        given = [*words, *own]
        code, _, err = antiphase("train --preset continue --start-from", ours, "--data", text, "--output", run, given)
        assert code == 0, err
        losses.append(Record.load(run).values["final"]["loss"])
        after = AutoModelForCausalLM.from_pretrained(run)
        torch.testing.assert_close(after(ids).logits, theirs(ids).logits, rtol=1e-4, atol=1e-4)
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-5)


@pytest.mark.slow
def test_another_architecture_is_upcycled(tmp_path, generated_text):
    text = tmp_path / "text.txt"
    text.write_text(generated_text)
    tokenizer = train_tokenizer([generated_text], vocabulary_size=300)
    model = str(save(small_other("gpt_neox", tokenizer), tokenizer, tmp_path / "theirs"))
    record = upcycle(model, tmp_path / "up", upcycle_preset(model, tmp_path / "up", SMALL, data=[str(text)]))
    starts, ends = ([run["curve"][place]["loss"] for run in record.values["runs"]] for place in (0, -1))
    assert starts == pytest.approx([starts[0]] * 3, abs=1e-5)
    assert all(end != pytest.approx(starts[0], abs=1e-6) for end in ends)


@pytest.mark.slow
def test_text_that_has_changed_is_refused(tiny_preset, tmp_path, generated_text):
    text = tmp_path / "text.txt"
    text.write_text(generated_text)
    changes = ["data.source=text", f"data.paths=[{text}]", "data.sequence_length=200"]
    model = trained(tmp_path / "run", tiny_preset, *changes)
    preset = upcycle_preset(model, tmp_path / "up")
    assert preset.run.data.tokenizer == str(tmp_path / "up" / "start" / "softmax")
    text.write_text(generated_text + " One more sentence.")
    with pytest.raises(InputError, match="began with other text"):
        upcycle(model, tmp_path / "up", preset)
    assert not (tmp_path / "up").exists()
    for change, words in (
        ("data.validation_share=0.1", "data.validation_share must stay 0.05"),
        ("data.sequence_length=210", "data.sequence_length must stay 200"),
        ("data.paths=[other.txt]", "data.paths must stay"),
    ):
        with pytest.raises(InputError, match=words):
            upcycle_preset(model, tmp_path / "up", [change])


@pytest.mark.slow
def test_on_text_and_resumed_from_another_folder(tiny_preset, tmp_path, generated_text, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text(generated_text)
    changes = [f"data.paths=[{text}]", "data.source=text", "data.sequence_length=200", "model.num_attention_heads=2"]
    model = trained(tmp_path / "run", tiny_preset, *changes)
    steps = ["training.steps=4", "compare.seeds=[5]", "compare.processes=2"]
    monkeypatch.chdir(tmp_path)
    first = upcycle("run", Path("up"), upcycle_preset("run", Path("up"), steps))
    (tmp_path / "up" / "start" / ".control.77.tmp").mkdir()  # of a conversion that was killed
    (tmp_path / "up").rename(tmp_path / "moved")
    (tmp_path / "moved" / "differential_v2-seed5" / "record.json").unlink()
    moved = tmp_path / "moved"
    second = upcycle(model, moved, upcycle_preset(model, moved, steps), resume=True)
    assert not (moved / "start" / ".control.77.tmp").exists()
    ends = [[run["final"] for run in record.values["runs"]] for record in (first, second)]
    assert ends[0] == ends[1]
    starts = [run["curve"][0]["loss"] for run in first.values["runs"]]
    assert starts == pytest.approx([starts[0]] * 3, abs=1e-6)


@pytest.mark.slow
def test_whole_study_by_its_command(tiny_preset, tmp_path):
    model = trained(tmp_path / "run", tiny_preset)
    output = tmp_path / "up"
    words = [sys.executable, "-m", "antiphase", "upcycle", model, "--output", str(output), "--seeds", "8"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "3 of 3 runs" in done.stdout
    values = Record.load(output).values
    assert values["arms"] == ARMS
    assert values["baseline"] == "softmax"
    before = Record.load(tmp_path / "run").values["final"]["loss"]
    starts = {run["arm"]: run["curve"][0]["loss"] for run in values["runs"]}
    assert starts == {arm: pytest.approx(before, abs=1e-6) for arm in ARMS}  # one function in three forms
    ends = [run["final"]["loss"] for run in values["runs"]]
    assert len({round(loss, 5) for loss in ends}) == 3  # which then part
    (further,) = [entry for entry in values["further_comparison"] if entry["metric"] == "held-out loss"]
    assert further["differences"]["differential_v2"]["mean"] == pytest.approx(ends[2] - ends[1])
    assert "control" in further["sentence"]
    own = {arm: found["attention_only"] for arm, found in values["parameters"].items()}
    assert own == {"softmax": 0, "control": 0, "differential_v2": 2 * 4 * 16}
    assert AutoModelForCausalLM.from_pretrained(output / "differential_v2-seed8").num_parameters() > 0
    assert (output / "report.html").is_file()
    again = subprocess.run([*words, "--resume"], capture_output=True, text=True, check=False, timeout=300)
    assert again.returncode == 0, again.stderr
    refused = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert (refused.returncode, "--resume" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_dex_is_an_arm_on_request_that_begins_as_the_same_function(tiny_preset, tmp_path):
    model = trained(tmp_path / "run", tiny_preset)
    assert list(upcycle_preset(model, tmp_path / "up").compare.arms) == ARMS
    preset = upcycle_preset(model, tmp_path / "up", ["training.steps=7", "compare.seeds=[8]"], more=DEX)
    jobs = {job.arm: job.settings.model for job in Grid(preset, tmp_path / "up").jobs}
    assert list(jobs) == [*ARMS, "dex"]
    assert (jobs["dex"].dex_heads, jobs["dex"].dex_steps) == ([[0, 1, 2, 3]] * 2, 3)
    assert {jobs[arm].dex_heads for arm in ARMS} == {None}
    values = upcycle(model, tmp_path / "up", preset).values
    runs = {run["arm"]: run for run in values["runs"]}
    starts = [run["curve"][0]["loss"] for run in runs.values()]
    assert starts == pytest.approx([starts[0]] * 4, abs=1e-6)
    assert abs(runs["dex"]["final"]["loss"] - runs["softmax"]["final"]["loss"]) > 1e-6
    assert values["parameters"]["dex"]["attention_only"] == 2 * (4 * 4 + 1)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "up" / "dex-seed8")
    assert all(layer.self_attn.dex_weight.abs().max() > 0 for layer in loaded.model.layers)
    assert all(layer.self_attn.dex_lambda.abs().max() > 0 for layer in loaded.model.layers)


@pytest.mark.slow
def test_v1_arms_begin_as_the_same_function_and_at_the_mean_size_of_each_head(tiny_preset, tmp_path):
    model = trained(tmp_path / "run", tiny_preset, "model.num_key_value_heads=2")
    preset = upcycle_preset(model, tmp_path / "up", ["training.steps=3", "compare.seeds=[8]"], more=V1)
    values = upcycle(model, tmp_path / "up", preset).values
    runs = {run["arm"]: run for run in values["runs"]}
    assert list(runs) == [*ARMS, "differential_no_norm", "differential"]
    start = {arm: run["curve"][0]["loss"] for arm, run in runs.items()}
    assert start["differential_no_norm"] == pytest.approx(start["softmax"], abs=1e-6)
    assert 1e-6 < abs(start["differential"] - start["softmax"]) < 0.1
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "up/start/differential")
    assert (found.config.head_norm, found.config.num_key_value_heads) == (None, 4)  # None: the published form's
    data = prepare(preset.run.data, tmp_path / "tokens")
    ids = data.validation(8).input_ids
    before = torch.tensor(head_sizes(model, ids))
    outputs = []
    hook = found.model.layers[0].self_attn.o_proj.register_forward_pre_hook(lambda _, given: outputs.append(given[0]))
    with torch.no_grad():
        found(ids)
    hook.remove()
    old = AutoModelForCausalLM.from_pretrained(model).model.layers[0].self_attn.o_proj.weight
    new = found.model.layers[0].self_attn.o_proj.weight
    heads, width = found.config.num_attention_heads // 2, found.config.head_dim
    scaled = new.unflatten(1, (heads, 2, width))[:, :, 0].norm(dim=(0, 2)) / old.unflatten(1, (heads, width)).norm(
        dim=(0, 2)
    )
    own = outputs[0].unflatten(-1, (heads, 2, width))[..., 0, :].square().mean(-1).sqrt().mean((0, 1))
    assert torch.allclose(scaled * own, before[0], rtol=2e-2)
    assert outputs[0].unflatten(-1, (heads, 2, width))[..., 1, :].abs().max() == 0
