"""Training: equal seeds give equal runs, however they are cut into pieces."""

import importlib.util
import json
import math
import signal
import stat
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphase.base.errors import InputError, Interrupted
from antiphase.lab.pages.summary import main_tables
from antiphase.lab.studies.runs import run_of
from antiphase.lab.text.prepare import prepare
from antiphase.lab.text.streams import SyntheticStream
from antiphase.lab.training import checkpoint, device, loop
from antiphase.lab.training.device import choose_device
from antiphase.lab.training.objective import NextTokenLoss
from antiphase.lab.training.run_model import build_model
from antiphase.layers.norm import RMSNorm
from antiphase.models.transformer import AntiphaseForCausalLM


def stop_at(step, how):
    """A reporter that interrupts the run after ``step`` steps."""

    def report(done, values):
        if done == step and not {"evaluation", "measuring"} & values.keys():
            how()

    return report


def press_ctrl_c():
    signal.raise_signal(signal.SIGINT)


def crash():
    raise OSError("the disk is full")


@pytest.mark.parametrize(("step", "how", "error", "arm"), [
    (7, press_ctrl_c, Interrupted, "softmax"), (10, press_ctrl_c, Interrupted, "differential"),
    (13, crash, OSError, "softmax"), (13, crash, OSError, "differential"),
    *(pytest.param(step, press_ctrl_c, Interrupted, arm, marks=pytest.mark.slow)
      for step, arm in ((7, "differential"), (10, "softmax"))),
])  # fmt: skip
def test_interrupted_and_resumed_run_equals_the_whole_one(
    tmp_path, run, outcome, assert_identical, arm, step, how, error
):
    kind = f"model.attention_type={arm}"
    run(tmp_path / "whole", kind)
    with pytest.raises(error):
        run(tmp_path / "parts", kind, report=stop_at(step, how))
    assert not (tmp_path / "parts" / "record.json").exists()
    run(tmp_path / "parts", kind, resume=True)
    assert_identical(outcome(tmp_path / "parts"), outcome(tmp_path / "whole"))


def stop_here():
    signal.raise_signal(signal.SIGTERM)


def stop_while_compiling():
    try:
        stop_here()
    except Interrupted as error:  # PyTorch's compiler does so with any error
        raise RuntimeError("Interrupted") from error


@pytest.mark.parametrize(
    ("step", "stop"), [(0, stop_here), (0, stop_while_compiling), pytest.param(10, stop_here, marks=pytest.mark.slow)]
)
def test_a_signal_stops_a_measurement_at_once_and_it_is_made_again(
    tmp_path, run, outcome, assert_identical, step, stop
):
    measured = []

    def report(done, values):
        measured.append(values.get("measuring"))
        if done == step and values.get("measuring") == "loss":
            stop()

    run(tmp_path / "whole")
    where = f"after step {step}" if step else "before step 1"
    with pytest.raises(Interrupted, match=f"stopped {where} of 20"):
        run(tmp_path / "parts", report=report)
    assert measured[-1] == "loss"
    record = run(tmp_path / "parts", resume=True)
    assert_identical(outcome(tmp_path / "parts"), outcome(tmp_path / "whole"))
    assert [point["step"] for point in record.values["curve"]] == [0, 5, 10, 15, 20]


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        *(pytest.param(f, marks=pytest.mark.slow) for f in ("checkpoint.json", "optimizer.safetensors")),
    ],
)
def test_a_run_whose_newest_checkpoint_is_damaged_says_so_and_reaches_the_same_weights(
    tmp_path, run, outcome, assert_identical, name
):
    run(tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(tmp_path / "parts", report=stop_at(12, press_ctrl_c))
    path = tmp_path / "parts" / "checkpoint" / "step-00000012" / name
    path.write_bytes(path.read_bytes()[:-5])
    said = []
    run(tmp_path / "parts", resume=True, say=said.append)
    assert said == [
        f"{path.parent} is damaged: {name} is not what the run wrote; training continues from step-00000010, and "
        "repeats the steps since then"
    ]
    assert_identical(outcome(tmp_path / "parts"), outcome(tmp_path / "whole"))


def test_every_step_reads_its_own_batch_once(tmp_path, run, monkeypatch):
    read, real = [], SyntheticStream.batch

    def batch(stream, step, page_length=None):
        if stream.key == (0, "training"):
            read.append(step)
        return real(stream, step, page_length)

    monkeypatch.setattr(SyntheticStream, "batch", batch)
    with pytest.raises(Interrupted):
        run(tmp_path / "run", report=stop_at(7, press_ctrl_c))
    run(tmp_path / "run", resume=True)
    assert read == list(range(20))


def test_run_stopped_before_its_first_checkpoint_starts_again(tmp_path, run, outcome, assert_identical):
    run(tmp_path / "whole")
    with pytest.raises(OSError, match="disk is full"):
        run(tmp_path / "parts", report=stop_at(2, crash))
    run(tmp_path / "parts", resume=True)
    assert_identical(outcome(tmp_path / "parts"), outcome(tmp_path / "whole"))


def test_each_step_is_logged_once_after_any_number_of_interruptions(tmp_path, run):
    for step in (3, 4, 9):
        with pytest.raises(Interrupted):
            run(tmp_path / "run", report=stop_at(step, press_ctrl_c), resume=True)
    with pytest.raises(OSError, match="disk is full"):
        run(tmp_path / "run", report=stop_at(14, crash), resume=True)
    record = run(tmp_path / "run", resume=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert [point["step"] for point in record.values["curve"]] == [0, 5, 10, 15, 20]
    assert lines[-1]["tokens"] == record.values["tokens"] == 20 * 6 * 25


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU])
def test_a_signal_ends_the_step_writes_a_checkpoint_and_is_given_back(tmp_path, run, kept, stop):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(stop)
    with pytest.raises(Interrupted, match="stopped after step 4 of 20"):
        run(tmp_path / "run", report=stop_at(4, lambda: signal.raise_signal(stop)))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(stop)) == before
    assert kept(tmp_path / "run")["progress"]["step"] == 4


def test_a_run_under_nohup_outlives_its_terminal(tmp_path, run):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        record = run(tmp_path / "run", report=stop_at(4, lambda: signal.raise_signal(signal.SIGHUP)))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert record.values["curve"][-1]["step"] == 20


def test_second_ctrl_c_stops_at_once(tmp_path, run):
    def twice():
        press_ctrl_c()
        press_ctrl_c()

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", report=stop_at(4, twice))


def test_resuming_a_finished_run_changes_nothing(tmp_path, run, outcome, assert_identical):
    first = run(tmp_path / "run")
    before, model = outcome(tmp_path / "run"), (tmp_path / "run" / "model.safetensors").read_bytes()
    second = run(tmp_path / "run", resume=True)
    assert_identical(outcome(tmp_path / "run"), before)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == model
    assert second.values == first.values


def test_resuming_a_finished_run_brings_its_model_back(tmp_path, run):
    run(tmp_path / "run")
    path = tmp_path / "run" / "model.safetensors"
    model, weights = path.read_bytes(), load_file(path)
    weights["model.norm.weight"].fill_(math.nan)
    save_file(weights, path, metadata={"format": "pt"})
    run(tmp_path / "run", resume=True)
    assert path.read_bytes() == model


def test_a_run_on_a_processor_keeps_freed_memory(tmp_path, run, monkeypatch):
    asked = []
    monkeypatch.setattr(loop, "keep_freed_memory", lambda: asked.append(True))
    run(tmp_path / "run", "training.steps=1")
    assert asked == [True]


def test_equal_seeds_give_equal_runs_and_other_seeds_others(tmp_path, run, outcome, assert_identical):
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        run(tmp_path / name, f"training.seed={seed}", "training.steps=3")
    assert_identical(outcome(tmp_path / "a"), outcome(tmp_path / "b"))
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in "ac")
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_arms_start_with_equal_shared_weights_and_read_equal_batches(tmp_path, settings):
    models, batches = {}, {}
    for arm in ("softmax", "differential"):
        chosen = settings(f"model.attention_type={arm}", "training.seed=7")
        data = prepare(chosen.data, tmp_path)
        models[arm] = dict(build_model(chosen, data.tokenizer, seed=7).named_parameters())
        stream = data.stream(batch_size=6, seed=7)
        batches[arm] = [stream.batch(step) for step in (0, 1, 19)]
    shared = models["softmax"].keys() & models["differential"].keys()
    assert shared == models["softmax"].keys()
    for name in shared:
        assert torch.equal(models["softmax"][name], models["differential"][name]), name
    own = models["differential"].keys() - shared
    assert {name.rpartition(".")[2] for name in own} == {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2", "weight"}
    for first, second in zip(*batches.values(), strict=True):
        assert torch.equal(first.input_ids, second.input_ids)
        assert torch.equal(first.labels, second.labels)
    ids = [batch.input_ids for batch in batches["softmax"]]
    assert not torch.equal(ids[0], ids[1])


def test_initial_weights_depend_on_seed_and_name_only(tmp_path, settings):
    small, large = settings(), settings("model.num_hidden_layers=4", "model.intermediate_size=8")
    tokenizer = prepare(small.data, tmp_path).tokenizer
    torch.manual_seed(1)
    first = dict(build_model(small, tokenizer, seed=3).named_parameters())
    torch.manual_seed(2)
    second = dict(build_model(large, tokenizer, seed=3).named_parameters())
    name = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(first[name], second[name])
    assert not torch.equal(first[name], first[name.replace("layers.1", "layers.0")])


def test_micro_batches_give_the_gradients_of_the_whole_batch(tmp_path, run, monkeypatch):
    gradients = {}

    def keep(parameters, limit):
        gradients[size].append([parameter.grad.clone() for parameter in parameters])
        return torch.tensor(1.0)

    monkeypatch.setattr(loop.nn.utils, "clip_grad_norm_", keep)
    for size in (6, 4, 1):  # 6 sequences: whole, 4 + 2, one by one
        gradients[size] = []
        run(tmp_path / str(size), f"training.micro_batch_size={size}", "training.steps=1")
    for size in (4, 1):
        for whole, parts in zip(gradients[6][0], gradients[size][0], strict=True):
            torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-7)
    assert max(gradient.abs().max() for gradient in gradients[6][0]) > 1e-3


def test_what_processes_count_depends_on_no_number_of_passes(tmp_path, run, monkeypatch):
    """One with a sequence more takes a pass more, and must not seem to be ahead of the others."""
    counted, passes = {}, {}
    monkeypatch.setattr(loop.Processes, "tick", lambda group, what: counted[size].append(what))
    monkeypatch.setattr(loop.Processes, "go_on", lambda group, what: passes[size].append(what))
    for size in (6, 4):
        counted[size], passes[size] = [], []
        run(tmp_path / str(size), f"training.micro_batch_size={size}", "training.steps=2")
    assert counted[6] == counted[4]
    assert "the computation of step 2" in counted[6]
    assert passes[4] == [f"forward pass {number} of step {step}" for step in (1, 2) for number in (1, 2)]


def test_logged_loss_is_the_mean_over_predicted_tokens(tmp_path, run, settings):
    run(tmp_path / "run", "training.steps=1", "training.micro_batch_size=4")
    (line,) = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    chosen = settings()
    data = prepare(chosen.data, tmp_path)
    batch = data.stream(batch_size=6, seed=0).batch(0)
    model = build_model(chosen, data.tokenizer, seed=0)
    expected = model(input_ids=batch.input_ids, labels=batch.labels).loss.item()
    assert line["loss"] == pytest.approx(expected, rel=1e-5)


def test_loss_applies_the_head_where_something_is_predicted(tiny_model):
    model = tiny_model()
    ids = torch.randint(3, 61, (3, 7))
    labels = ids.masked_fill(torch.rand(ids.shape) < 0.5, -100)
    logits = model(input_ids=ids).logits[:, :-1].double()
    chosen = labels[:, 1:] >= 0
    expected = -logits.log_softmax(-1)[chosen].gather(1, labels[:, 1:][chosen].unsqueeze(1)).sum()
    torch.testing.assert_close(NextTokenLoss(model)(ids, labels).double(), expected, rtol=1e-5, atol=1e-5)


def test_checkpointed_gradients_give_equal_losses(tmp_path, run, outcome, assert_identical):
    passes = []
    for name, chosen in (("plain", "false"), ("checkpointed", "true")):
        passes.append(0)

        def count(*given):
            passes[-1] += torch.is_grad_enabled()

        handle = nn.modules.module.register_module_forward_pre_hook(
            lambda module, given, count=count: count() if isinstance(module, RMSNorm) else None
        )
        run(tmp_path / name, "training.steps=4", f"training.gradient_checkpointing={chosen}")
        handle.remove()
    assert passes[1] > 1.5 * passes[0] > 0  # blocks are computed a second time
    plain, checkpointed = (outcome(tmp_path / name)["metrics"] for name in ("plain", "checkpointed"))
    assert_identical(checkpointed, plain)


def test_bfloat16_trains_float32_weights(tmp_path, run):
    record = run(tmp_path / "run", "training.precision=bfloat16", "training.steps=6")
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    losses = [point["loss"] for point in record.values["curve"]]
    assert all(math.isfinite(loss) for loss in losses)
    exact = run(tmp_path / "exact", "training.steps=6").values["curve"]
    assert losses == pytest.approx([point["loss"] for point in exact], rel=0.02)
    assert losses != [point["loss"] for point in exact]


def test_loss_goes_down(tmp_path, run):
    curve = run(tmp_path / "run", "training.steps=60", "training.evaluate_every=60").values["curve"]
    assert curve[-1]["loss"] < curve[0]["loss"] - 0.1
    assert curve[0]["train_loss"] is None


def test_folder_loads_as_hugging_face_loads_models(tmp_path, run, kept):
    record = run(tmp_path / "run", "training.steps=2")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert type(model) is AntiphaseForCausalLM
    assert model.num_parameters() == record.values["parameters"]
    assert len(tokenizer) == model.config.vocab_size == 2 + 7 + 9 + 11
    assert (model.config.pad_token_id, model.config.eos_token_id) == (0, 1)
    assert model.config.max_position_embeddings == 25
    assert tokenizer.decode(tokenizer("key3 n2").input_ids) == "key3 n2"
    trained = kept(tmp_path / "run")["model"]
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, trained[name]), name


def test_weights_can_be_read_by_everyone_who_may_read_the_folder(tmp_path, run, umask):
    run(tmp_path / "run")
    weights = [*(tmp_path / "run").rglob("*.safetensors")]
    assert len(weights) >= 3  # the model, and those of a checkpoint
    assert {stat.S_IMODE(path.stat().st_mode) for path in weights} == {0o666 & ~umask}


def test_the_page_of_a_run_counts_no_steps_to_a_threshold_that_it_has_not(tmp_path, run):
    headline, *_ = main_tables(run(tmp_path / "run", "training.steps=5"))
    names = [row[0] for row in headline.text()]
    assert any(name.startswith("Held-out loss") for name in names)
    assert not any(name.startswith("Steps to") for name in names)


def test_record_of_a_run_tells_what_it_is(tmp_path, run):
    values = run(tmp_path / "run", "training.steps=5", "model.rope_theta=500").values
    assert values["folder"] == "run"
    assert len(values["lambdas"]) == len(values["gradient_norms"]) == 2
    assert values["attention_only"] == 2 * (4 * 4 + 2 * 4)  # layers × (four vectors and a norm over two maps)
    assert values["final"]["loss"] == values["curve"][-1]["loss"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["rope_parameters"]["rope_theta"] == 500


def test_peak_memory_is_the_largest_over_all_sittings(tmp_path, run, monkeypatch):
    assert 1 << 20 < run(tmp_path / "run").values["peak_memory"] < 1 << 50
    monkeypatch.setattr(checkpoint, "peak_memory", lambda: 5000)
    with pytest.raises(Interrupted):
        run(tmp_path / "parts", report=stop_at(7, press_ctrl_c))
    monkeypatch.setattr(checkpoint, "peak_memory", lambda: 3000)
    found = run_of(run(tmp_path / "parts", resume=True))
    assert (found.peak_memory, found.peak_gpu_memory) == (5000, None)


def test_a_run_keeps_its_precision(tmp_path, run, monkeypatch):
    """``auto`` would choose another one on another processor."""
    monkeypatch.setattr(device, "has_bf16_instructions", lambda: True)
    with pytest.raises(Interrupted):
        run(tmp_path / "run", "training.precision=auto", report=stop_at(7, press_ctrl_c))
    monkeypatch.setattr(device, "has_bf16_instructions", lambda: False)
    with pytest.raises(InputError, match=r"trained in bfloat16 so far, and training\.precision=auto means float32"):
        run(tmp_path / "run", "training.precision=auto", resume=True)
    monkeypatch.setattr(device, "has_bf16_instructions", lambda: True)
    assert run_of(run(tmp_path / "run", "training.precision=auto", resume=True)).precision == "bfloat16"


def test_dex_is_not_trained_where_it_cannot_leave_zero(tmp_path, run):
    chosen = ["model.attention_type=softmax", "model.dex_heads=[[0],[0]]", "training.steps=4"]
    for steps in (0, 1):
        with pytest.raises(InputError, match=rf"model\.dex_steps must be at least 2, got {steps}"):
            run(tmp_path / str(steps), *chosen, f"model.dex_steps={steps}")
    run(tmp_path / "2", *chosen, "model.dex_steps=2")
    weights = load_file(tmp_path / "2" / "model.safetensors")
    assert all(tensor.any() for name, tensor in weights.items() if "dex_" in name)


def test_on_a_gpu_torchs_count_is_kept_beside_it(monkeypatch):
    monkeypatch.setattr(checkpoint, "peak_memory", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: {0: 70, 1: 90}[device.index])
    progress = checkpoint.Progress(0, 0.0, 0, [], "float32", "", peak_gpu_memory=80)
    progress.note_memory(torch.device("cuda:0"))
    assert (progress.peak_memory, progress.peak_gpu_memory) == (None, 80)
    progress.note_memory(torch.device("cuda:1"))
    assert progress.peak_gpu_memory == 90


@pytest.mark.parametrize("name", ["nonsense", "cuda:99", "meta", "gpu", "", "cpu:x"])
def test_device_that_is_not_there_is_refused(name):
    with pytest.raises(InputError, match=f"device {name}"):
        choose_device(name)


@pytest.mark.parametrize(("override", "field"), [
    ("model.num_attention_heads=3", "num_attention_heads"), ("model.num_key_value_heads=3", "num_key_value_heads"),
    ("model.head_dim=3", "head_dim"), ("training.device=nonsense", "device"),
])  # fmt: skip
def test_refused_sizes_write_nothing(tmp_path, run, override, field):
    with pytest.raises(InputError, match=field):
        run(tmp_path / "run", override)
    assert not (tmp_path / "run").exists()


def test_missing_tensorboard_is_refused_before_anything_is_written(tmp_path, run, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'antiphase\[tensorboard\]'"):
        run(tmp_path / "run", "training.tensorboard=true")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("arm", ["softmax", "differential", "differential_v2"])
def test_another_attention_function_trains_the_same_model(tmp_path, run, settings, arm, monkeypatch):
    """``training.attn_implementation`` holds for training alone: the saved model knows nothing of it."""
    kind = f"model.attention_type={arm}"
    used, real = [], AntiphaseForCausalLM.set_attn_implementation
    monkeypatch.setattr(
        AntiphaseForCausalLM, "set_attn_implementation",
        lambda model, name, **rest: used.append(name) or real(model, name, **rest),
    )  # fmt: skip
    for name in ("antiphase", "eager"):
        run(tmp_path / name, kind, "training.steps=2", f"training.attn_implementation={name}")
    assert used == ["antiphase", "eager"]
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("antiphase", "eager"))
    for tensor in one:
        torch.testing.assert_close(one[tensor], other[tensor], rtol=1e-3, atol=1e-4)
    assert "attn_implementation" not in (tmp_path / "eager" / "config.json").read_text()
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "eager").config._attn_implementation == "antiphase"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_fused_kernels_are_refused_where_they_do_not_run(tmp_path, run):
    words = r"training\.attn_implementation=antiphase_triton: (the Triton kernels need a CUDA device|impl=\"triton\")"
    with pytest.raises(InputError, match=words):
        run(tmp_path / "run", "model.attention_type=differential", "training.attn_implementation=antiphase_triton")
    run(tmp_path / "softmax", "model.attention_type=softmax", "training.steps=1",
        "training.attn_implementation=antiphase_triton")  # fmt: skip


def test_only_transformers_take_an_attention_function(settings):
    with pytest.raises(InputError, match=r"training\.attn_implementation needs model\.kind=transformer, got lstm"):
        settings("model.kind=lstm", "training.attn_implementation=eager")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_validation_before_step_1_at_once(tmp_path, settings, stop):
    """It goes on with --resume, and comes to the same curve."""
    calls = []

    def begun(model, divide):
        hook = model.get_input_embeddings().register_forward_hook(lambda *parts: calls.append(len(calls)))
        if not calls:
            signal.raise_signal(stop)
        try:
            model(input_ids=torch.zeros(1, 3, dtype=torch.int64))
        finally:
            hook.remove()
        return {"own": 1.0}

    chosen = settings()
    data = prepare(chosen.data, tmp_path / "tokens")
    run = partial(loop.train, chosen, data, tmp_path / "run", evaluations={"own": begun})
    with pytest.raises(Interrupted, match=r"^stopped before step 1 of 20$"):
        run()
    assert calls == []
    assert not (tmp_path / "run" / "record.json").exists()
    calls.append(0)
    record = run(resume=True)
    assert [point["step"] for point in record.values["curve"]] == [0, 5, 10, 15, 20]
