"""Checkpoints: whatever moment a crash comes at, a whole one can be found, and whatever byte is wrong, it is named."""

import json
import os
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed import checkpoint as distributed_checkpoint
from torch.distributed.checkpoint import HuggingFaceStorageReader

from antiphase.base.errors import InputError, Interrupted
from antiphase.base.folders.holders import held
from antiphase.lab.settings.presets import TrainingSettings
from antiphase.lab.training import checkpoint
from antiphase.lab.training.checkpoint import Progress, checkpoints, load_checkpoint, save_checkpoint
from antiphase.lab.training.optimizer import build_optimizer
from support.crashes import MOMENTS, Crash, crash_at

FILES = ["checkpoint.json", "model.safetensors", "optimizer.safetensors"]


@pytest.fixture
def parts(tiny_model):
    """A small model that took one step, and its optimizer."""
    model = tiny_model(num_hidden_layers=1)
    return model, stepped(model, torch.optim.AdamW(model.parameters(), lr=0.1))


def stepped(model, optimizer):
    model(input_ids=torch.arange(9)[None], labels=torch.arange(9)[None]).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


OWN = {"precision": "float32", "run": "0" * 64}


def progress(step):
    return Progress(step=step, seconds=1.5, tokens=7, curve=[{"step": 0, "loss": 2.0, "accuracy": None}], **OWN)


def mark(model, step):
    """Make the weights tell the step."""
    with torch.no_grad():
        model.lm_head.weight.fill_(float(step))


def saved(folder, model, optimizer, *steps):
    for step in steps:
        mark(model, step)
        save_checkpoint(folder, model, optimizer, progress(step))


def found(folder, model, optimizer, **options):
    """Step of the checkpoint, which weights and progress must agree on; None where there is none."""
    mark(model, -1)
    loaded = load_checkpoint(folder, model, optimizer, **options)
    if loaded is None:
        return None
    assert model.lm_head.weight.flatten().tolist() == [float(loaded.step)] * model.lm_head.weight.numel()
    return loaded.step


def steps_in(folder):
    return [int(path.name.removeprefix("step-")) for path in checkpoints(folder)]


def assert_same_state(first, second, first_parameters, second_parameters):
    """Bit for bit, types and hyperparameters included."""
    for one, other in zip(first_parameters, second_parameters, strict=True):
        assert first.state[one].keys() == second.state[other].keys()
        for key, value in first.state[one].items():
            assert torch.equal(value, second.state[other][key]), key
            assert (value.dtype, value.device) == (second.state[other][key].dtype, second.state[other][key].device)
    for one, other in zip(first.state_dict()["param_groups"], second.state_dict()["param_groups"], strict=True):
        assert one == other
        assert [type(value) for value in one.values()] == [type(value) for value in other.values()]


def of_runs(model, fused):
    """As ``antiphase train`` builds it, with all groups that there can be."""
    optimizer = build_optimizer(model, TrainingSettings(steps=9, lambda_rate=0.5))
    for group in optimizer.param_groups:
        group["fused"] = fused
    return optimizer


OPTIMIZERS = {
    "of runs, fused": lambda model: of_runs(model, fused=True), "of runs": lambda model: of_runs(model, fused=False),
    "Adam of epochs": lambda model: torch.optim.Adam(model.parameters(), lr=1e-3, fused=True),
    "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_weights_optimizer_and_progress_come_back_bit_for_bit(tmp_path, tiny_model, build, dtype):
    model = tiny_model(num_hidden_layers=2).to(dtype)
    optimizer = stepped(model, build(model))
    optimizer.param_groups[0]["lr"] = 0.1 / 3
    save_checkpoint(tmp_path, model, optimizer, progress(3))
    fresh = tiny_model(num_hidden_layers=2).to(dtype)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    other = build(fresh)
    assert load_checkpoint(tmp_path, fresh, other) == progress(3)
    assert_same_state(optimizer, other, model.parameters(), fresh.parameters())
    for _ in range(2):  # and the steps from there
        for (name, first), second in zip(model.named_parameters(), fresh.parameters(), strict=True):
            assert torch.equal(first, second), name
        stepped(model, optimizer)
        stepped(fresh, other)


def test_an_optimizer_before_its_first_step_has_no_state(tmp_path, tiny_model):
    model = tiny_model(num_hidden_layers=1)
    save_checkpoint(tmp_path, model, torch.optim.AdamW(model.parameters(), lr=0.25), progress(0))
    optimizer = torch.optim.AdamW(model.parameters())
    assert load_checkpoint(tmp_path, model, optimizer) == progress(0)
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_no_checkpoint_is_none(tmp_path, parts):
    assert load_checkpoint(tmp_path, *parts) is None


def test_two_checkpoints_are_kept_as_safetensors_and_json(tmp_path, parts):
    saved(tmp_path, *parts, 8, 9, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert sorted(os.listdir(tmp_path / "checkpoint")) == ["step-00000009", "step-00000010"]
    newest = tmp_path / "checkpoint" / "step-00000010"
    assert sorted(os.listdir(newest)) == FILES
    names = {name for name, _ in parts[0].named_parameters()}
    assert load_file(newest / "model.safetensors").keys() == names
    kinds = {"step", "exp_avg", "exp_avg_sq"}
    assert load_file(newest / "optimizer.safetensors").keys() == {f"{name}.{kind}" for name in names for kind in kinds}
    tree = json.loads((newest / "checkpoint.json").read_text())
    assert tree["progress"] == vars(progress(10))
    assert tree["optimizer"]["groups"][0]["lr"] == 0.1


def test_tied_weights_are_stored_once(tmp_path, tiny_model):
    model = tiny_model(num_hidden_layers=1, tie_word_embeddings=True)
    optimizer = stepped(model, torch.optim.AdamW(model.parameters()))
    save_checkpoint(tmp_path, model, optimizer, progress(1))
    for name in ("model", "optimizer"):
        text = " ".join(load_file(checkpoints(tmp_path)[0] / f"{name}.safetensors"))
        assert "model.embed_tokens.weight" in text
        assert "lm_head" not in text
    fresh = tiny_model(num_hidden_layers=1, tie_word_embeddings=True)
    assert load_checkpoint(tmp_path, fresh, torch.optim.AdamW(fresh.parameters())) == progress(1)
    assert torch.equal(fresh.lm_head.weight, model.model.embed_tokens.weight)


def test_distributed_checkpoints_of_torch_read_it_by_name(tmp_path, parts):
    model, optimizer = parts
    save_checkpoint(tmp_path, model, optimizer, progress(1))
    read = {name: torch.empty_like(parameter) for name, parameter in model.named_parameters()}
    moments = {f"{name}.exp_avg": torch.empty_like(tensor) for name, tensor in read.items()}
    reader = HuggingFaceStorageReader(str(checkpoints(tmp_path)[0]))
    with pytest.warns(UserWarning, match="torch.distributed"):
        distributed_checkpoint.load(read | moments, storage_reader=reader)
    for name, parameter in model.named_parameters():
        assert torch.equal(read[name], parameter), name
        assert torch.equal(moments[f"{name}.exp_avg"], optimizer.state[parameter]["exp_avg"]), name


def save_until(moment, folder, model, optimizer, step, monkeypatch):
    mark(model, step)
    with monkeypatch.context() as patch:
        crash_at(moment, patch)
        try:
            save_checkpoint(folder, model, optimizer, progress(step))
        except Crash:
            assert moment != "done"
        else:
            assert moment == "done"


@pytest.mark.parametrize("first", [
    pytest.param(moment, marks=pytest.mark.slow) if moment in ("save_file 1", "fsync 1", "fsync 5") else moment
    for moment in MOMENTS
])  # fmt: skip
def test_two_crashes_in_a_row_leave_whole_checkpoints(tmp_path, parts, monkeypatch, first):
    for second in MOMENTS:
        folder = tmp_path / second
        saved(folder, *parts, 1, 2)
        last = 2
        for step, moment in ((3, first), (4, second)):
            save_until(moment, folder, *parts, step, monkeypatch)
            complaints = []
            step_found = found(folder, *parts, say=complaints.append)
            assert not complaints
            renamed = MOMENTS.index(moment) > MOMENTS.index("rename")
            assert step_found == (step if renamed else last)
            last = step_found
        saved(folder, *parts, 5)
        assert steps_in(folder) == [5, last]
        assert found(folder, *parts) == 5
        assert all(sorted(os.listdir(path)) == FILES for path in checkpoints(folder))
        assert len(os.listdir(folder / "checkpoint")) == 2


@pytest.mark.parametrize("moment", [moment for moment in MOMENTS if moment not in ("rmtree", "done")])
def test_the_first_checkpoint_is_there_whole_or_not_at_all(tmp_path, parts, monkeypatch, moment):
    save_until(moment, tmp_path, *parts, 1, monkeypatch)
    assert found(tmp_path, *parts) == (1 if moment == "fsync 5" else None)


@pytest.mark.parametrize("moment", ["fsync 4", "rename", "rename 2", "fsync 5", "rmtree", "done"])
def test_a_crash_while_a_damaged_checkpoint_is_replaced(tmp_path, parts, monkeypatch, moment):
    saved(tmp_path, *parts, 1, 2, 4)
    for step in (2, 4):
        flip(tmp_path / "checkpoint" / f"step-{step:08}" / "model.safetensors", -1)
    saved(tmp_path / "first", *parts, 1)
    shutil.copytree(tmp_path / "first", tmp_path, dirs_exist_ok=True)
    assert found(tmp_path, *parts) == 1
    save_until(moment, tmp_path, *parts, 2, monkeypatch)
    assert found(tmp_path, *parts) == (2 if moment in ("fsync 5", "rmtree", "done") else 1)
    saved(tmp_path, *parts, 2)
    assert sorted(os.listdir(tmp_path / "checkpoint")) == ["step-00000001", "step-00000002"]
    assert found(tmp_path, *parts) == 2


@pytest.mark.parametrize("second", ["rename", "rmtree"])
@pytest.mark.parametrize("first", [*MOMENTS, "rename 2"])
def test_a_step_that_is_saved_again_has_a_checkpoint_at_any_time(tmp_path, parts, monkeypatch, first, second):
    saved(tmp_path, *parts, 3)
    for moment in (first, second):
        save_until(moment, tmp_path, *parts, 3, monkeypatch)
        said = []
        assert found(tmp_path, *parts, say=said.append) == 3
        assert not said
    saved(tmp_path, *parts, 3)
    assert os.listdir(tmp_path / "checkpoint") == ["step-00000003"]
    saved(tmp_path, *parts, 4, 5)
    assert steps_in(tmp_path) == [5, 4]


def taken_over(folder):
    other = {"machine": "another boot", "host": "node7", "process": 3, "token": "t"}
    (folder / ".holder").write_text(json.dumps(other))


def test_checkpoints_of_a_machine_that_took_the_folder_over_stay(tmp_path, parts):
    with held(tmp_path):
        saved(tmp_path, *parts, 1)
        taken_over(tmp_path)
        for name in ("step-00000003", "step-00000004", ".step-00000002.tmp", ".step-00000005.tmp"):
            (tmp_path / "checkpoint" / name).mkdir()
        before = sorted(os.listdir(tmp_path / "checkpoint"))
        with pytest.raises(Interrupted, match="was taken over by a process on node7"):
            saved(tmp_path, *parts, 2)
    assert sorted(os.listdir(tmp_path / "checkpoint")) == before


def test_what_another_machine_writes_under_the_same_name_stays(tmp_path, parts):
    """It took the folder over while a checkpoint was being written."""
    fresh = tmp_path / "checkpoint" / ".step-00000002.tmp"

    def save():
        with checkpoint.added(tmp_path, 2):
            taken_over(tmp_path)
            (tmp_path / "checkpoint" / "step-00000003").mkdir()
            (fresh / "theirs").touch()

    with held(tmp_path), pytest.raises(Interrupted, match="was taken over by a process on node7"):
        save()
    assert (fresh / "theirs").exists()
    assert steps_in(tmp_path) == [3]


def flip(path, place, bit=0):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(bytes(content))


def spoil(path, how):
    """Damage a file; returns how the message calls it."""
    if how == "missing":
        path.unlink()
        return "is missing"
    content = path.read_bytes()
    if isinstance(how, float):
        flip(path, int(how * len(content)))
    else:
        path.write_bytes(content[: how if how >= 0 else len(content) + how])
    return "is not what the run wrote"


DAMAGES = ["missing", 0.0, 0.2, 0.5, 0.8, 0.9999, 0, 7, -1]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_of_the_newest_is_named_and_the_one_before_is_taken(tmp_path, parts, name, how):
    saved(tmp_path, *parts, 1, 2)
    words = spoil(tmp_path / "checkpoint" / "step-00000002" / name, how)
    said = []
    assert found(tmp_path, *parts, say=said.append) == 1
    assert said == [
        f"{tmp_path}/checkpoint/step-00000002 is damaged: {name} {words}; training continues from step-00000001, and "
        "repeats the steps since then"
    ]
    saved(tmp_path, *parts, 2)  # in place of the damaged one
    assert steps_in(tmp_path) == [2, 1]
    assert found(tmp_path, *parts, say=said.append) == 2
    assert len(said) == 1


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", DAMAGES)
def test_without_a_whole_checkpoint_the_error_names_file_and_remedy(tmp_path, parts, name, how):
    saved(tmp_path, *parts, 1)
    words = spoil(tmp_path / "checkpoint" / "step-00000001" / name, how)
    message = (
        f"{tmp_path}/checkpoint/step-00000001 is damaged: {name} {words}; remove {tmp_path}/checkpoint to begin the "
        "run afresh, or choose another --output"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        load_checkpoint(tmp_path, *parts)


def test_two_damaged_checkpoints_are_refused(tmp_path, parts):
    saved(tmp_path, *parts, 1, 2)
    for path in checkpoints(tmp_path):
        flip(path / "optimizer.safetensors", -1)
    with pytest.raises(InputError, match=r"step-00000002 is damaged: optimizer\.safetensors .*, and so is the one"):
        load_checkpoint(tmp_path, *parts)


def test_no_byte_of_the_manifest_can_change_unseen(tmp_path, parts):
    saved(tmp_path, *parts, 1)
    path = tmp_path / "checkpoint" / "step-00000001" / "checkpoint.json"
    content = path.read_bytes()
    for place in range(0, len(content), 3):
        flip(path, place, bit=place % 8)
        with pytest.raises(InputError, match=r"step-00000001 is damaged: checkpoint\.json is not what the run wrote"):
            load_checkpoint(tmp_path, *parts)
        path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_checkpoint_is_not_this_ones(tmp_path, parts, name):
    saved(tmp_path / "a", *parts, 3)
    stepped(*parts)
    saved(tmp_path / "b", *parts, 3)
    shutil.copy(tmp_path / "b" / "checkpoint" / "step-00000003" / name, tmp_path / "a" / "checkpoint" / "step-00000003")
    wrong = "optimizer" if name == "optimizer.safetensors" else "model"  # the other's manifest tells of other weights
    with pytest.raises(InputError, match=rf"step-00000003 is damaged: {wrong}\.safetensors is not what the run wrote"):
        load_checkpoint(tmp_path / "a", *parts)


@pytest.mark.parametrize("fields", [{"num_hidden_layers": 2}, {"num_hidden_layers": 1, "intermediate_size": 8}])
def test_checkpoint_of_another_shape_is_refused(tmp_path, parts, tiny_model, fields):
    save_checkpoint(tmp_path, *parts, progress(1))
    model = tiny_model(**fields)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(InputError, match=r"holds a model of another shape, model\.layers\.\S+ first; give"):
        load_checkpoint(tmp_path, model, torch.optim.AdamW(model.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_another_precision_is_refused(tmp_path, parts, tiny_model):
    save_checkpoint(tmp_path, *parts, progress(1))
    model = tiny_model(num_hidden_layers=1).bfloat16()
    with pytest.raises(InputError, match="holds a model of another shape"):
        load_checkpoint(tmp_path, model, torch.optim.AdamW(model.parameters()))


def test_a_renamed_parameter_is_refused_by_name(tmp_path, parts, tiny_model):
    save_checkpoint(tmp_path, *parts, progress(1))
    model = tiny_model(num_hidden_layers=1)
    model.model.final_norm = model.model.norm
    del model.model.norm
    with pytest.raises(InputError, match=r"holds a model of another shape, model\.final_norm\.weight first"):
        load_checkpoint(tmp_path, model, torch.optim.AdamW(model.parameters()))


def test_other_groups_of_parameters_are_refused(tmp_path, parts):
    model, _ = parts
    save_checkpoint(tmp_path, *parts, progress(1))
    with pytest.raises(InputError, match="holds an optimizer with other groups of parameters"):
        load_checkpoint(tmp_path, model, build_optimizer(model, TrainingSettings(steps=9)))


def changed(key, *place):
    """A function that gives a manifest another value, found by the keys in ``place``; none: without it."""

    def change(tree):
        *path, value = place
        for name in path[:-1]:
            tree = tree[name]
        tree[path[-1]] = value

    return pytest.param(change, id=key)


@pytest.mark.parametrize(
    "change",
    [
        *(pytest.param(lambda tree, name=name: tree.pop(name), id=f"no {name}")
          for name in ("format", "progress", "optimizer", "files")),
        *(changed(f"{name} is {value}", name, value) for name in ("format", "progress", "optimizer", "files")
          for value in (None, [], {}, "x", 7, [1])),
        *(changed(f"{name} is {value}", "progress", name, value) for name in ("step", "seconds", "tokens", "curve")
          for value in (None, "x", -1, [1], float("nan"), True)),
        changed("a long step", "progress", "step", 10**40),
        changed("values", "optimizer", "values", "nobody.exp_avg", 1), changed("list", "optimizer", "values", []),
        changed("groups", "optimizer", "groups", [1]), changed("params", "optimizer", "groups", 0, "params", 7),
        changed("param", "optimizer", "groups", 0, "params", [[]]), changed("lr", "optimizer", "groups", 0, "lr", "x"),
        changed("nan", "optimizer", "groups", 0, "lr", float("nan")),
        changed("betas", "optimizer", "groups", 0, "betas", 7), changed("beta", "optimizer", "groups", 0, "betas", [1]),
        changed("amsgrad", "optimizer", "groups", 0, "amsgrad", "x"),
        changed("outside", "files", "../../outside", "0"), changed("digest", "files", "model.safetensors", 7),
    ],
)  # fmt: skip
def test_a_manifest_with_a_right_checksum_must_be_one(tmp_path, parts, change):
    saved(tmp_path, *parts, 1)
    path = tmp_path / "checkpoint" / "step-00000001" / "checkpoint.json"
    tree = json.loads(path.read_bytes())
    del tree["sha256"]
    change(tree)
    path.write_bytes(checkpoint.sealed(tree))
    with pytest.raises(InputError, match=r"step-00000001 (is damaged|is of format|holds an optimizer)"):
        load_checkpoint(tmp_path, *parts)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda states: {**states, "nobody.exp_avg": torch.ones(2)}, "holds an optimizer with other groups"),
        (lambda states: {key: state.reshape(-1)[:1].clone() for key, state in states.items()}, "do not fit, "),
        (lambda states: {key: state * float("nan") for key, state in states.items()}, "do not fit, "),
        (lambda states: {key: state.to(torch.int8) for key, state in states.items()}, "do not fit, "),
    ],
    ids=["parameter", "shape", "nan", "whole"],
)
def test_states_that_do_not_fit_the_model_are_refused(tmp_path, parts, change, said):
    saved(tmp_path, *parts, 1)
    folder = tmp_path / "checkpoint" / "step-00000001"
    save_file(change(load_file(folder / checkpoint.OPTIMIZER)), folder / checkpoint.OPTIMIZER)
    seal_anew(folder, checkpoint.OPTIMIZER)
    with pytest.raises(InputError, match=said):
        load_checkpoint(tmp_path, *parts)


@pytest.mark.parametrize("name", [checkpoint.MODEL, checkpoint.OPTIMIZER])
def test_a_file_with_a_right_digest_must_hold_tensors(tmp_path, parts, name):
    saved(tmp_path, *parts, 1)
    folder = tmp_path / "checkpoint" / "step-00000001"
    (folder / name).write_bytes(b"\xff" * 40)
    seal_anew(folder, name)
    with pytest.raises(InputError, match=rf"step-00000001 is damaged: {name} is no safetensors file"):
        load_checkpoint(tmp_path, *parts)


def seal_anew(folder, name):
    """Make the manifest fit a changed file."""
    tree = json.loads((folder / checkpoint.MANIFEST).read_bytes())
    del tree["sha256"]
    tree["files"][name] = checkpoint.file_digest(folder / name)
    (folder / checkpoint.MANIFEST).write_bytes(checkpoint.sealed(tree))


def test_a_link_or_a_file_named_like_a_checkpoint_is_removed_and_what_it_leads_to_stays(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "kept").touch()
    home = tmp_path / "run" / "checkpoint"
    home.mkdir(parents=True)
    (home / "step-00000099").symlink_to(theirs)
    (home / "step-00000098").symlink_to(tmp_path / "nowhere")
    (home / "step-00000097").touch()
    with checkpoint.added(tmp_path / "run", 5) as fresh:
        (fresh / "weights").touch()
    assert [path.name for path in home.iterdir()] == ["step-00000005"]
    assert (theirs / "kept").is_file()
