"""Weights divided over processes, in a group of one process that stands for many."""

import copy
import errno
import json
import re
import threading

import pytest
import torch
from safetensors import safe_open
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

import antiphase
from antiphase.base.errors import DivergedError, InputError, Interrupted, NonFiniteError
from antiphase.lab.scoring.likelihood import greedy_predictions, negative_log_likelihoods
from antiphase.lab.settings.presets import MeshSettings, TrainingSettings, load_preset
from antiphase.lab.text.prepare import prepare
from antiphase.lab.training import divided_checkpoint, divided_files, run_model
from antiphase.lab.training.checkpoint import Progress, checkpoints, load_checkpoint, save_checkpoint, sealed
from antiphase.lab.training.distributed import Processes, alone, mesh_sizes
from antiphase.lab.training.divided_checkpoint import DividedCheckpoints
from antiphase.lab.training.divided_files import export
from antiphase.lab.training.objective import NextTokenLoss
from antiphase.lab.training.optimizer import build_optimizer
from antiphase.lab.training.sharding import whole
from antiphase.lab.training.watch import Report, Watch, hang_message
from antiphase.layers.exchange import Exchange


@pytest.fixture
def group():
    """A group of this process alone, which divides weights over a mesh of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
        yield Processes(rank=0, count=1, device=torch.device("cpu"), mesh=mesh)
    finally:
        dist.destroy_process_group()


@pytest.fixture
def trained(tiny_config):
    """``trained(group)``: a model after two steps, its optimizer, and what they were before the division."""

    def build(group, kind="differential", **fields):
        torch.manual_seed(0)
        model = antiphase.AntiphaseForCausalLM(tiny_config(kind, **fields)).train()
        group.place(model, None)
        objective, optimizer = group.wrap(NextTokenLoss(model)), build_optimizer(model, TrainingSettings(steps=9))
        ids = torch.randint(61, (3, 11), generator=torch.Generator().manual_seed(1))
        for _ in range(2):
            with group.accumulating(objective, is_last=True):
                objective(ids, ids).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    return build


def progress(step):
    return Progress(step, 1.0, 9, [{"step": 0, "loss": 2.0}], "float32", "0" * 64)


def weights(model):
    return {name: whole(parameter.detach()).clone() for name, parameter in model.named_parameters()}


def states(model, optimizer):
    named = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{named[one]}.{key}": whole(value).clone()
        for one, state in optimizer.state.items()
        for key, value in state.items()
    }


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def save(folder, model, optimizer, group, *steps):
    with DividedCheckpoints(folder, model, optimizer, group, 60) as saving:
        for step in steps:
            saving.save(progress(step))


@pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2"])
def test_a_divided_model_trains_as_a_whole_one(group, trained, kind):
    divided, plain = trained(group, kind), trained(alone(), kind)
    assert all(isinstance(parameter, DTensor) for parameter in divided[0].parameters())
    assert_equal(weights(divided[0]), weights(plain[0]))
    assert_equal(states(*divided), states(*plain))


def test_divided_and_whole_checkpoints_are_read_by_either(tmp_path, group, trained):
    model, optimizer = trained(group)
    save(tmp_path / "divided", model, optimizer, group, 7)
    plain = trained(alone())
    save_checkpoint(tmp_path / "whole", *plain, progress(7))
    for folder in ("divided", "whole"):
        for here in (group, alone()):
            torch.manual_seed(5)
            other = trained(here)
            with torch.no_grad():
                for parameter in other[0].parameters():
                    parameter.mul_(3)
            assert load_checkpoint(tmp_path / folder, *other, group=here) == progress(7)
            assert_equal(weights(other[0]), weights(model))
            assert_equal(states(*other), states(model, optimizer))
            assert other[1].state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]


def test_a_fresh_optimizer_takes_the_states(tmp_path, group, trained):
    model, optimizer = trained(group)
    save(tmp_path, model, optimizer, group, 7)
    fresh = build_optimizer(model, TrainingSettings(steps=9))
    load_checkpoint(tmp_path, model, fresh, group=group)
    assert_equal(states(model, fresh), states(model, optimizer))


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, group, trained, monkeypatch):
    """It has the tensors of its step, whatever happens to them meanwhile."""
    model, optimizer = trained(group)
    before, write = weights(model), divided_checkpoint.write_parts

    def late(*arguments):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        write(*arguments)

    monkeypatch.setattr(divided_checkpoint, "write_parts", late)
    save(tmp_path, model, optimizer, group, 7)
    assert not any(tensor.any() for tensor in weights(model).values())
    load_checkpoint(tmp_path, model, optimizer, group=group)
    assert_equal(weights(model), before)


def test_two_checkpoints_are_kept_and_nothing_is_pickled(tmp_path, group, trained):
    save(tmp_path, *trained(group), group, 1, 2, 3)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000003", "step-00000002"]
    names = sorted(path.name for path in checkpoints(tmp_path)[0].iterdir())
    assert names == ["checkpoint.json", "shard-00001-model-00001-of-00001.safetensors"]


def test_a_failed_write_is_told_and_leaves_the_one_before(tmp_path, group, trained, monkeypatch):
    model, optimizer = trained(group)
    save(tmp_path, model, optimizer, group, 1)

    def full(*arguments, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(divided_files.HuggingFaceStorageWriter, "write_data", full)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, model, optimizer, group, 2)
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("content", [b"\xff" * 40, b"", (2).to_bytes(8, "little") + b"[]"])
def test_a_file_that_holds_no_tensors_is_refused(tmp_path, content):
    (tmp_path / "shard-00001-model-00001-of-00001.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="is damaged: a file of weights cannot be read"):
        divided_files.stored(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_file_is_named_and_the_one_before_is_read(tmp_path, group, trained, damage):
    model, optimizer = trained(group)
    save(tmp_path, model, optimizer, group, 1, 2)
    (path,) = checkpoints(tmp_path)[0].glob("*.safetensors")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    else:
        path.unlink()
    said = []
    assert load_checkpoint(tmp_path, model, optimizer, say=said.append, group=group) == progress(1)
    assert re.search(rf"damaged: {path.name} is (missing|not what)", said[0])


def test_a_checkpoint_of_another_model_is_refused(tmp_path, group, trained):
    save(tmp_path, *trained(group), group, 1)
    for other, name in (({"num_hidden_layers": 4}, "model.layers.3"), ({"intermediate_size": 44}, "mlp")):
        for here in (group, alone()):
            with pytest.raises(InputError, match=rf"holds a model of another shape, .*{name}"):
                load_checkpoint(tmp_path, *trained(here, **other), group=here)
    model, optimizer = trained(group)
    del optimizer.param_groups[1]
    with pytest.raises(InputError, match="holds an optimizer with other groups"):
        load_checkpoint(tmp_path, model, optimizer, group=group)


def test_weights_that_are_not_finite_are_refused(tmp_path, group, trained):
    model, optimizer = trained(group)
    with torch.no_grad():
        model.model.norm.weight.to_local()[3] = torch.nan
    save(tmp_path, model, optimizer, group, 1)
    with pytest.raises(InputError, match=r"NaN or infinite weights, model\.norm\.weight first"):
        load_checkpoint(tmp_path, model, optimizer, group=group)


def test_an_unknown_format_is_refused(tmp_path, group, trained):
    model, optimizer = trained(group)
    save(tmp_path, model, optimizer, group, 1)
    manifest = checkpoints(tmp_path)[0] / "checkpoint.json"
    tree = json.loads(manifest.read_text())
    del tree["sha256"]
    manifest.write_bytes(sealed({**tree, "format": 9}))
    with pytest.raises(InputError, match="is of format 9, and this version reads 2 and 3"):
        load_checkpoint(tmp_path, model, optimizer, group=group)


@pytest.mark.parametrize("tied", [True, False])
def test_an_export_is_an_ordinary_model_in_files_of_limited_size(tmp_path, group, trained, monkeypatch, tied):
    model, _ = trained(group, tie_word_embeddings=tied)
    monkeypatch.setattr(divided_files, "EXPORTED_BYTES", 40_000)
    export(model, tmp_path, 0, 1)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0].name == f"model-00001-of-{len(files):05}.safetensors"
    assert all(path.stat().st_size < 45_000 for path in files)
    for path in files:
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt"}
    read, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert_equal(weights(read), weights(model))
    assert type(read) is antiphase.AntiphaseForCausalLM


# ------------------------------------------------------------------------------------------ dividing work


def test_processes_that_divide_sequences_have_the_same_rows():
    rows = torch.arange(9)
    found = [
        Processes(rank=rank, count=6, device=torch.device("cpu"), exchange=Exchange("", 3, rank % 3))
        .share(rows)
        .tolist()
        for rank in range(6)
    ]
    assert found == 3 * [[0, 2, 4, 6, 8]] + 3 * [[1, 3, 5, 7]]
    found = [
        Processes(rank=rank, count=4, device=torch.device("cpu"), tensor=2).share(rows).tolist() for rank in range(4)
    ]
    assert found == 2 * [[0, 2, 4, 6, 8]] + 2 * [[1, 3, 5, 7]]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_batches_are_divided_into_equally_many_passes(group, count):
    ids = torch.arange(7 * 5).view(7, 5)
    for rows in (1, 2, 3, None):
        shares = [
            Processes(rank=rank, count=count, device=group.device, mesh=group.mesh).passes(ids, ids, rows)
            for rank in range(count)
        ]
        assert len({len(passes) for passes in shares}) == 1
        assert all(len({*map(len, parts)}) == 1 for passes in shares for parts in passes)
        predicted = [label for passes in shares for _, labels, _ in passes for label in labels[labels >= 0].tolist()]
        assert sorted(predicted) == list(range(35))


@pytest.mark.parametrize(("count", "rows"), [(2, 9), (3, 9), (4, 5), (3, 1)])
def test_held_out_text_is_divided_into_the_same_numbers(tiny_model, monkeypatch, count, rows):
    """Each process computes its pieces in turn; their sum is what one process computes, to the last bit."""
    model = tiny_model()
    ids = torch.randint(61, (rows, 8), generator=torch.Generator().manual_seed(2))
    labels = ids.clone()
    labels[::2, 3:6] = -100
    positions = torch.tensor([[3, -1, 7]]).expand(rows, 3)
    monkeypatch.setattr("antiphase.lab.scoring.likelihood.TOKENS_AT_ONCE", 16)  # two rows at once
    expected = negative_log_likelihoods(model, ids, labels), greedy_predictions(model, ids, positions)
    for index, measure in enumerate(
        (lambda divide: negative_log_likelihoods(copy.deepcopy(model), ids, labels, divide=divide),
         lambda divide: greedy_predictions(copy.deepcopy(model), ids, positions, divide))
    ):  # fmt: skip
        calls = []
        found = together(count, measure, calls)
        assert all(torch.equal(one, expected[index]) for one in found)
    assert calls


def test_processes_that_divide_heads_compute_the_same_pieces():
    made = []

    def measure(divide):
        return divide(range(3), lambda piece: made.append((divide.__self__.rank, piece)) or torch.tensor([2.0 * piece]))

    for found in together(4, measure, [], tensor=2):
        assert torch.cat(found).tolist() == [0.0, 2.0, 4.0]
    assert sorted(made) == [(0, 0), (0, 2), (1, 0), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]


def together(count, measure, calls, **fields):
    """The results of ``measure`` in ``count`` threads that add up what they are given."""
    barrier, given, found = threading.Barrier(count), {}, [None] * count

    class Thread(Processes):
        def sum(self, value):
            given[self.rank] = value.clone()
            barrier.wait(60)
            added = sum(given[rank] for rank in range(self.count))
            barrier.wait(60)
            calls.append(self.rank)
            return value.copy_(added)

    def work(rank):
        found[rank] = measure(Thread(rank=rank, count=count, device=torch.device("cpu"), **fields).divide)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_a_result_that_is_not_finite_is_an_error_in_every_process():
    failed = []

    def measure(divide):
        def compute(piece):
            if piece == 3:
                raise NonFiniteError("piece 3")
            return torch.tensor([float(piece)])

        with pytest.raises(NonFiniteError, match=r"piece 3|in another process"):
            divide(range(5), compute)
        failed.append(1)

    together(3, measure, [])
    assert len(failed) == 3


def test_a_refusal_of_one_process_is_a_refusal_of_all():
    caught = []

    def measure(divide):
        group = divide.__self__
        try:
            with group.agreeing():
                if group.is_first:
                    raise DivergedError("step 3")
        except (InputError, DivergedError) as error:
            caught.append(str(error))

    together(3, measure, [])
    assert sorted(caught)[:2] == ["--output cannot be used, as another process of this run says"] * 2
    assert sorted(caught)[2] == "step 3"


def test_storage_that_not_every_process_sees_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("antiphase.lab.training.distributed.SEEN_SECONDS", 0.1)
    monkeypatch.setattr(Processes, "wait", lambda self: None)
    said = []

    def measure(divide):
        group = divide.__self__
        here = tmp_path / ("local" if group.rank == 2 else "shared")
        here.mkdir(exist_ok=True)
        with pytest.raises(InputError) as error:
            group.check_storage(here)
        said.append(str(error.value))

    together(3, measure, [])
    assert len(said) == 3
    assert all("process 2 of 3 does not see what process 0 wrote there; give a folder" in one for one in said)
    assert not [*(tmp_path / "shared").iterdir()]


# ------------------------------------------------------------------------------------------ settings and messages


def test_the_mesh_must_make_up_the_processes():
    def sizes(count, **mesh):
        return mesh_sizes(TrainingSettings(steps=1, mesh=MeshSettings(**mesh)), count)

    assert (sizes(4), sizes(4, shard=2), sizes(6, replicate=2, shard=3)) == ((4, 1, 1, 1), (2, 2, 1, 1), (2, 3, 1, 1))
    assert (sizes(4, context=2), sizes(8, shard=2, context=2)) == ((2, 1, 2, 1), (2, 2, 2, 1))
    assert (sizes(4, tensor=2), sizes(8, shard=2, tensor=2)) == ((2, 1, 1, 2), (2, 2, 1, 2))
    with pytest.raises(InputError, match=r"^training\.mesh\.shard=3 does not make up the 4 processes of this run; "):
        sizes(4, shard=3)
    with pytest.raises(InputError, match=r"training\.mesh\.replicate=1 times training\.mesh\.shard=2 does not make up"):
        sizes(4, replicate=1, shard=2)
    with pytest.raises(InputError, match=r"^training\.mesh\.shard=2 times training\.mesh\.context=3 does not make up"):
        sizes(4, shard=2, context=3)
    with pytest.raises(InputError, match=r"^training\.mesh\.tensor=3 does not make up the 4 processes"):
        sizes(4, tensor=3)


def test_a_mesh_without_its_processes_is_refused(refused, tiny_preset):
    words = f"train --preset {tiny_preset} --output one --set"
    refused(r"training\.mesh\.shard=2 does not make up the 1 process of this run", words, "training.mesh.shard=2")
    refused(r"training\.mesh\.shard must be at least 1", words, "training.mesh.shard=0")
    refused(r"training\.mesh\.context=5 does not make up the 1 process of this run", words, "training.mesh.context=5")


def test_processes_that_do_not_divide_heads_are_refused(settings, monkeypatch, tmp_path):
    """The tiny preset has 25 tokens and 4 maps of V1, which are 2 heads."""
    monkeypatch.setattr(run_model, "process_count", lambda: 5)
    chosen = settings("training.mesh.context=5")
    tokenizer = prepare(chosen.data, tmp_path).tokenizer
    with pytest.raises(InputError, match=r"^training\.mesh\.context: 5 processes do not divide 2 heads; lower it"):
        run_model.check_settings(chosen, tokenizer)
    chosen = settings("training.mesh.context=5", "model.num_attention_heads=20", "model.num_key_value_heads=4",
                      "model.head_dim=2", "model.attention_type=differential")  # fmt: skip
    with pytest.raises(InputError, match=r"5 processes do not divide 10 heads with 2 value heads"):
        run_model.check_settings(chosen, tokenizer)
    for overrides, message in (
        (["training.mesh.tensor=5"], r"^training\.mesh\.tensor=5 does not divide model\.intermediate_size \(24\)"),
        (
            ["training.mesh.tensor=5", "model.intermediate_size=25"],
            "^training.mesh.tensor: 5 processes do not divide 2",
        ),
        (
            ["training.mesh.tensor=5", "model.lambda_form=head"],
            r"^training\.mesh\.tensor cannot divide layers with sinks",
        ),
        (["training.mesh.tensor=5", "model.attention_type=cog"], "layers with sinks, softmax_one, softpick, cog, "),
    ):
        with pytest.raises(InputError, match=message):
            run_model.check_settings(settings(*overrides), tokenizer)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.kind=lstm", "training.mesh.shard=2"], "mesh.shard needs model.kind=transformer"),
        (["model.kind=lstm", "training.mesh.context=5"], "mesh.context needs model.kind=transformer"),
        (["training.mesh.context=2"], "training.mesh.context=2 does not divide data.sequence_length (25); change one"),
        (["model.kind=lstm", "training.compile=true"], "compile needs model.kind=transformer"),
        (["training.trained=lora", "training.mesh.shard=2"], "lora cannot divide the weights"),
        (["training.trained=lora", "training.mesh.tensor=2"], "the weights; remove training.mesh.tensor"),
        (["training.compile=true", "training.mesh.tensor=2"], "compile does not know divided heads yet"),
    ],
)
def test_what_cannot_be_divided_is_refused(tiny_preset, overrides, message):
    with pytest.raises(InputError, match=re.escape(message)):
        load_preset(str(tiny_preset), overrides)


def test_a_checkpoint_that_fails_after_a_stop_is_told(tmp_path, group, trained, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(divided_checkpoint, "write_parts", full)

    def stopped(error):
        with DividedCheckpoints(tmp_path, *trained(group), group, 60) as saving:
            saving.save(progress(1))
            raise error

    with pytest.raises(OSError, match="No space left on device"):
        stopped(Interrupted())
    with pytest.raises(ZeroDivisionError):
        stopped(ZeroDivisionError())


def test_a_part_of_a_step_is_told_and_not_counted():
    watch = Watch(dist.HashStore(), 0, 1, 60.0)
    watch.tick("step 1")
    watch.go_on("forward pass 1 of step 1")
    watch.go_on("forward pass 2 of step 1")
    watch.begin()
    watch.end()
    told = json.loads(watch.store.get("0"))
    assert (told["beginnings"], told["what"]) == (1, "forward pass 2 of step 1")


def test_the_message_about_a_hang_names_the_process():
    def report(what):
        return Report(beginnings=3, what=what, age=9.0, beat=4, host="node7")

    said = hang_message({5: report("step 12")}, 8, 60.0)
    assert said.startswith("process 5 of 8 (node7) made no progress for 60 s (training.hang_limit), last: step 12; ")
    assert "process 5 of 8 (node7), and 2 more, made no" in hang_message(dict.fromkeys((5, 6, 7), report("a")), 8, 1.0)
    assert hang_message(dict.fromkeys(range(8), report("a")), 8, 1.0).startswith("all 8 processes made no progress")
