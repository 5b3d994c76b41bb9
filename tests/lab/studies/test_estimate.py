"""Estimates against counted tensors and collectives, and the choice of a mesh."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from antiphase.base.records import Record
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.estimate import EstimateSettings
from antiphase.lab.studies.estimate.formulas import Communication, communication, memory
from antiphase.lab.studies.estimate.measure import chosen_mesh, estimate, estimated, part_of, sizes_of, step_of
from antiphase.lab.studies.estimate.operations import forward_flops
from antiphase.lab.studies.estimate.presentation import SENT
from antiphase.lab.training.distributed import alone
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.transformer import AntiphaseForCausalLM
from support.counted_step import counted_step
from support.paths import ROOT

SIZE = """\
model: {hidden_size: 64, num_hidden_layers: 3, intermediate_size: 176, num_attention_heads: 4, initializer: fan_in}
data: {source: text, paths: [x], sequence_length: 64, needle_share: 0.0, vocabulary_size: 512}
training: {steps: 2, batch_size: 8, precision: float32, device: cpu}
"""
WIDE = ["model.hidden_size=256", "model.intermediate_size=700", "training.batch_size=2"]
THREE = ([], ["model.hidden_size=128", "model.intermediate_size=320", "model.num_hidden_layers=4"], WIDE)
"""Most is held at the loss in the first two, and where gradients are complete in the third."""


@pytest.fixture
def size(tmp_path):
    path = tmp_path / "size.yaml"
    path.write_text(SIZE)
    return path


@pytest.mark.parametrize(
    "changes",
    [
        *THREE,
        ["model.attention_type=softmax"],
        ["model.attention_type=differential_v2"],
        ["training.micro_batch_size=2"],
        [*WIDE, "model.tie_word_embeddings=false"],
        ["data.vocabulary_size=4096", "model.hidden_size=32"],
        ["training.gradient_checkpointing=true", "model.num_hidden_layers=12", "data.vocabulary_size=300"],
        ["training.precision=bfloat16", *WIDE],
    ],
)
@pytest.mark.slow
def test_memory_is_what_counted_tensors_take(size, changes):
    run = load_preset(str(size), changes).run
    counted = counted_step(run, alone())
    found = memory(sizes_of(run)[1], step_of(run, gpus=1, shard=1))
    assert found.weights + found.optimizer == pytest.approx(counted["at_rest"], rel=1e-3)
    assert found.total == pytest.approx(counted["peak"], rel=0.1)


@pytest.mark.parametrize(
    "changes",
    [
        ["model.use_qk_norm=true", "model.qkv_bias=true", "model.norm_type=zero_centered_rms_norm"],
        ["model.attention_type=softmax", "model.gated_mlp=false", "model.mlp_bias=true", "model.attention_bias=true",
         "model.hidden_act=gelu", "model.norm_type=layer_norm"],
        ["model.attention_type=softmax", "model.use_parallel_residual=true", "model.partial_rotary_factor=0.25"],
        ["model.use_qk_norm=true", "model.whole_qk_norm=true", "model.norm_position=after"],
        ["model.hidden_act=poly_norm", "model.lambda_init=[-0.01, 0.2, 0.3, 0.4, 0.5, 0.6]"],
        ["model.num_attention_heads=8", "model.num_noise_heads=1", "model.num_key_value_heads=2"],
    ],
)  # fmt: skip
@pytest.mark.slow
def test_memory_of_blocks_of_other_decoders(size, changes):
    few_words = ["data.vocabulary_size=300", "model.num_hidden_layers=6", "training.batch_size=16"]
    run = load_preset(str(size), [*few_words, *changes]).run
    counted = counted_step(run, alone())
    found = memory(sizes_of(run)[1], step_of(run, gpus=1, shard=1))
    assert found.weights + found.optimizer == pytest.approx(counted["at_rest"], rel=1e-3)
    assert found.total == pytest.approx(counted["peak"], rel=0.02)


def counted_in_processes(size, tmp_path, changes, count=2):
    script = ROOT / "tests" / "support" / "counted_step.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    done = subprocess.run(
        [*launcher, script, size, tmp_path / "counted.json", *changes], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads((tmp_path / "counted.json").read_text())


def assert_agree(counted, sizes, step, rel=0.1):
    """Sent bytes exactly, and memory."""
    assert communication(sizes, step) == Communication(**{kind: counted[kind] for kind in SENT})
    found = memory(sizes, step)
    assert found.weights + found.optimizer == pytest.approx(counted["at_rest"], rel=1e-3)
    assert found.total == pytest.approx(counted["peak"], rel=rel)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        *THREE,
        ["model.attention_type=softmax", "model.num_key_value_heads=1", "model.num_attention_heads=8"],
        ["model.attention_type=differential_v2"],
        ["training.micro_batch_size=4", "training.gradient_checkpointing=true"],
    ],
)
def test_memory_and_communication_of_two_processes_that_share_sequences(size, tmp_path, changes):
    changes = [*changes, "training.mesh.context=2"]
    counted = counted_in_processes(size, tmp_path, changes)
    run = load_preset(str(size), changes).run
    sizes, step = sizes_of(run)[1], step_of(run, gpus=2, shard=1, context=2)
    assert_agree(counted, sizes, step, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        *THREE,
        ["model.attention_type=softmax", "model.num_key_value_heads=4", "model.num_attention_heads=8"],
        ["model.attention_type=differential_v2"],
        ["model.lambda_form=scalar", "model.head_norm=false"],
        ["model.attention_type=softmax", "model.head_norm=true", "training.micro_batch_size=4"],
        ["training.micro_batch_size=4", "training.gradient_checkpointing=true"],
        ["training.precision=bfloat16"],
        ["model.use_qk_norm=true", "model.qkv_bias=true"],
        ["model.attention_type=softmax", "model.gated_mlp=false", "model.mlp_bias=true", "model.attention_bias=true"],
    ],
)
def test_memory_and_communication_of_two_processes_that_divide_heads(size, tmp_path, changes):
    changes = [*changes, "training.mesh.tensor=2"]
    counted = counted_in_processes(size, tmp_path, changes)
    run = load_preset(str(size), changes).run
    sizes, step = part_of(run), step_of(run, gpus=2, shard=1)
    assert_agree(counted, sizes, step)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [THREE[0], THREE[2]])
def test_memory_and_communication_of_four_processes_that_divide_heads_and_weights(size, tmp_path, changes):
    changes = [*changes, "training.mesh.tensor=2", "training.mesh.shard=2"]
    counted = counted_in_processes(size, tmp_path, changes, count=4)
    run = load_preset(str(size), changes).run
    sizes, step = part_of(run), step_of(run, gpus=4, shard=2)
    assert_agree(counted, sizes, step)


BF16 = ["training.precision=bfloat16"]
WORDS = [*BF16, "data.vocabulary_size=4096", "model.hidden_size=128"]
"""Most is held by embeddings and head, which bf16 does not round before they are gathered."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        *THREE,
        ["training.micro_batch_size=2"],
        [*BF16, *WIDE],
        WORDS,
        [*WORDS, "model.tie_word_embeddings=false"],
        ["data.vocabulary_size=515"],
    ],
)
def test_memory_and_communication_of_two_processes_that_share_a_model(size, tmp_path, changes):
    changes = [*changes, "training.mesh.shard=2"]
    counted = counted_in_processes(size, tmp_path, changes)
    run = load_preset(str(size), changes).run
    assert_agree(counted, sizes_of(run)[1], step_of(run, gpus=2, shard=2))


@pytest.mark.slow
@pytest.mark.parametrize("changes", [THREE[0], [*BF16, *WIDE, "training.batch_size=4"]])
def test_memory_and_communication_of_four_processes_with_two_copies(size, tmp_path, changes):
    changes = [*changes, "training.mesh.shard=2"]
    counted = counted_in_processes(size, tmp_path, changes, count=4)
    run = load_preset(str(size), changes).run
    step = step_of(run, gpus=4, shard=2)
    assert step.replicas == 2
    assert_agree(counted, sizes_of(run)[1], step)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        *THREE,
        [*BF16, *WIDE],
        [*WIDE, "model.tie_word_embeddings=false"],
        ["training.batch_size=16", "training.micro_batch_size=2"],
    ],
)
def test_memory_and_communication_of_two_processes_with_a_whole_model_each(size, tmp_path, changes):
    """The default; its buffers of gradients are held all the time."""
    counted = counted_in_processes(size, tmp_path, changes)
    run = load_preset(str(size), changes).run
    assert_agree(counted, sizes_of(run)[1], step_of(run, gpus=2, shard=1), rel=0.05)


def test_an_uneven_batch_costs_what_the_gpu_with_the_most_sequences_needs(size):
    batches = {15: {}, 16: {}}
    for batch, row in batches.items():
        preset = load_preset(str(size), [f"training.batch_size={batch}"])
        for found in estimated(preset, EstimateSettings(gpus=8)):
            row[found.arm] = found
    for arm, uneven in batches[15].items():
        even = batches[16][arm]
        assert (uneven.sequences, uneven.passes, uneven.total) == (2, 1, even.total)
        assert uneven.days == pytest.approx(even.days, rel=1e-12)
        assert uneven.tokens_a_second == pytest.approx(even.tokens_a_second * 15 / 16, rel=1e-12)
    run = load_preset(str(size), ["training.batch_size=15", "training.micro_batch_size=1"]).run
    step = step_of(run, gpus=8, shard=4)
    assert (step.sequences, step.passes) == (1, 2)


def test_the_least_division_that_fits_is_chosen(size):
    run = load_preset(str(size), ["training.batch_size=16"]).run
    sizes = sizes_of(run)[1]
    takes = {shard: memory(sizes, step_of(run, gpus=8, shard=shard)).total for shard in (1, 2, 4, 8)}
    assert takes[1] > takes[2] > takes[4] > takes[8]
    fleet = EstimateSettings(gpus=8, gpus_per_node=4, memory_share=1.0)
    for shard, total in takes.items():
        step, found, why = chosen_mesh(sizes, run, replace(fleet, gpu_memory=total / 1e9 + 1e-9))
        assert (step.shard, step.replicas, found.total) == (shard, 8 // shard, total)
        assert ("a whole copy fits" in why) == (shard == 1)


def test_sequences_are_shared_where_nothing_else_fits(size):
    run = load_preset(
        str(size), ["training.batch_size=4", "training.micro_batch_size=1", "data.sequence_length=512"]
    ).run
    sizes = sizes_of(run)[1]
    takes = {
        context: memory(sizes, step_of(run, gpus=4, shard=4 // context, context=context)).total for context in (1, 2)
    }
    assert takes[1] > takes[2]
    fleet = EstimateSettings(gpus=4, gpus_per_node=4, memory_share=1.0, gpu_memory=takes[2] / 1e9 + 1e-9)
    step, found, why = chosen_mesh(sizes, run, fleet)
    assert (step.replicas, step.shard, step.context, found.total) == (1, 2, 2, takes[2])
    assert why.startswith("shared over 2, each sequence over 2 GPUs it fits")
    step, _, why = chosen_mesh(sizes, run, replace(fleet, gpus=8, gpu_memory=80.0))
    assert (step.replicas, step.shard, step.context) == (4, 1, 2)
    assert why.startswith("a batch has fewer sequences than GPUs; ")


def test_heads_are_divided_as_asked_for(size):
    run = load_preset(str(size), ["model.num_attention_heads=8", "training.mesh.tensor=4"]).run
    _, row = estimated(replace(load_preset(str(size)), run=run), EstimateSettings(gpus=8, gpus_per_node=4))
    assert (row.replicate, row.shard, row.context, row.tensor) == (2, 1, 1, 4)
    assert row.why.startswith("heads divided over 4 GPUs as asked for, it fits")
    _, whole = estimated(load_preset(str(size), ["model.num_attention_heads=8"]), EstimateSettings(gpus=1))
    assert row.parameters == whole.parameters
    assert row.weights < whole.weights
    assert row.all_reduce == 4 * part_of(run).parameters
    assert row.sums > 0 == whole.sums


def test_the_mesh_that_a_run_asks_for_is_taken(size):
    fleet = EstimateSettings(gpus=8)
    for chosen, expected in (
        (["shard=4"], (2, 4, 1)),
        (["replicate=8"], (8, 1, 1)),
        (["shard=2", "context=2"], (2, 2, 2)),
    ):
        preset = load_preset(str(size), [f"training.mesh.{one}" for one in chosen])
        row = estimated(preset, fleet)[0]
        assert (row.replicate, row.shard, row.context) == expected


def test_the_vocabulary_of_a_named_tokenizer_counts(size, tmp_path, text_tokenizer):
    """As it does in training, whatever data.vocabulary_size says."""
    text_tokenizer.save_pretrained(tmp_path / "tokenizer")
    named = sizes_of(load_preset(str(size), [f"data.tokenizer={tmp_path / 'tokenizer'}"]).run)[0]
    assert named.config.vocab_size == len(text_tokenizer) != sizes_of(load_preset(str(size)).run)[0].config.vocab_size


def test_what_is_not_counted_is_refused(refused):
    refused("data.tokenizer ./none: there is no such folder", "estimate --set data.tokenizer=./none")
    refused("training.mesh.shard=3 does not make up the 8 .* --gpus", "estimate --set training.mesh.shard=3")
    refused(
        "training.mesh.replicate=2 times training.mesh.shard=1 does not make up",
        "estimate --set training.mesh.replicate=2",
    )
    refused("16 processes do not divide 24 heads", "estimate --gpus 16 --set training.mesh.context=16")
    refused("training.precision=float64 is not counted", "estimate --set training.precision=float64")
    refused("training.trained=lambda is not counted", "estimate --set training.trained=lambda")
    refused("model.attention_type=cog is not counted", "estimate --set compare.arms=[S,C]")
    refused("model.output_gate=True is not counted", "estimate --set compare.arms=[S,G]")


def test_a_fleet_that_is_too_small_or_too_large_is_refused(refused):
    refused("--gpus 1 are too small a fleet: shared over 1, a step takes .* GB", "estimate --preset paper --gpus 1")
    refused("--gpus 1024: a batch has only 64 sequences", "estimate --preset gpu --gpus 1024")
    refused("--gpus 12 is no whole number of nodes of 8", "estimate --gpus 12")
    refused("--gpu h1000: unknown; did you mean 'h100'", "estimate --gpu h1000")
    refused("--peak-share must be above 0", "estimate --peak-share 0")
    refused("training.mesh.tensor=3 does not divide model.interm", "estimate --set training.mesh.tensor=3")
    refused(
        "training.mesh.tensor=2 does not divide the 1 GPUs", "estimate --gpus-per-node 1 --set training.mesh.tensor=2"
    )
    refused("training.mesh.tensor=2 does not divide the 1 GPUs", "estimate --gpus 1 --set training.mesh.tensor=2")
    refused("recurrent network", "estimate --preset half-hour --set model.kind=lstm")


@pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2"])
def test_operations_are_those_that_torch_counts(kind):
    """With whole maps, which the eager way forms; where both maps meet the values apart, these count twice."""
    config = AntiphaseConfig(
        attention_type=kind, vocab_size=64, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
        num_attention_heads=8, head_dim=10,
    )  # fmt: skip
    model = AntiphaseForCausalLM(config).eval()
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.zeros(1, 32, dtype=torch.int64))
    assert counter.get_total_flops() == 32 * forward_flops(model, 32, causal=False)


def test_maps_that_heads_share_count_once():
    """20 maps, not 32; the fast way lets the 4 second ones meet the values, too, and the eager one subtracts before."""
    config = AntiphaseConfig(
        attention_type="differential", vocab_size=64, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
        num_attention_heads=32, num_noise_heads=4, num_key_value_heads=8, head_dim=10,
    )  # fmt: skip
    model = AntiphaseForCausalLM(config).eval()
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.zeros(1, 32, dtype=torch.int64))
    meeting = 3 * 2 * 32 * 4 * 20  # layers, a product and a sum, keys, second maps, width of a value
    assert counter.get_total_flops() == 32 * (forward_flops(model, 32, causal=False) - meeting)


def test_the_papers_3b_models():
    """3.2B parameters without embeddings in either arm, 1T tokens, 6 operations for a weight and a token."""
    rows = {row.arm: row for row in estimated(load_preset("paper", data=["x"]), EstimateSettings(gpus=64))}
    softmax, differential = rows["softmax"], rows["differential"]
    assert softmax.parameters == 28 * (4 * 3072**2 + 3 * 3072 * 8192 + 2 * 3072) + 3072 + 2 * 100288 * 3072
    assert differential.parameters - softmax.parameters == 28 * (4 * 128 + 2 * 128)
    assert softmax.tokens == 250_000 * 1024 * 4096
    assert softmax.flops == differential.flops
    plain = 6 * (softmax.parameters - 100288 * 3072) * softmax.tokens
    assert 1.0 < softmax.flops / plain < 1.15  # the rest is attention at 4,096 tokens


def test_reproduce_at_the_papers_scale_is_an_estimate(antiphase, refused, tmp_path):
    assert antiphase("reproduce --scale paper --devices 16 --device-flops 3e14 --output out")[0] == 0
    record = Record.load(tmp_path / "out")
    fleet = EstimateSettings(preset="paper", gpus=16, gpu_flops=3e14, peak_share=1.0)
    assert record.kind == "estimate"
    assert record.values == estimate(fleet, None).values
    for row in record.values["rows"]:
        assert row["days"] == pytest.approx(row["flops"] * 4 / 3 / (16 * 3e14) / 86400)
    refused("--devices must be at least 1, got 0", "reproduce --scale paper --devices 0 --output other")
    refused("--device-flops must be above 0", "reproduce --scale paper --device-flops 0 --output other")
    refused("--devices 12 is no whole number of nodes of 8", "reproduce --scale paper --devices 12 --output other")


def test_the_papers_models_on_64_gpus(tmp_path):
    settings = EstimateSettings(preset="paper", gpus=64)
    record = estimate(settings, tmp_path / "out")
    assert Record.load(tmp_path / "out").values == record.values
    for row in record.values["rows"]:
        parts = ("weights", "gradients", "optimizer", "activations", "logits", "gathered")
        assert sum(row[part] for part in parts) == row["total"] <= settings.bytes_each
        assert row["replicate"] * row["shard"] == 64
        assert row["days"] == pytest.approx(row["flops"] * 4 / 3 / (64 * 989.4e12 * 0.4) / 86400)


def test_json_has_one_object_for_each_arm(antiphase):
    code, out, err = antiphase("estimate --preset gpu --json")
    assert code == 0, err
    assert [json.loads(line)["arm"] for line in out.splitlines()] == ["softmax", "differential"]
