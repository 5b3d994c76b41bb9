"""Checkpoints: whatever moment a crash comes at, a whole one can be found."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from antiphase.errors import InputError
from antiphase.training import checkpoint
from antiphase.training.checkpoint import Progress, load_checkpoint, save_checkpoint


class Crash(BaseException):
    """A process that ends here."""


@pytest.fixture
def parts(tiny_model):
    """A small model that took one step, and its optimizer."""
    model = tiny_model(num_hidden_layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(input_ids=torch.arange(9)[None], labels=torch.arange(9)[None]).loss.backward()
    optimizer.step()
    return model, optimizer


def progress(step):
    return Progress(step=step, seconds=1.5, tokens=7, curve=[{"step": 0, "loss": 2.0, "accuracy": None}])


def mark(model, step):
    """Make the weights tell the step."""
    with torch.no_grad():
        model.lm_head.weight.fill_(float(step))


def found(folder, model, optimizer):
    """Step of the checkpoint, which weights and progress must agree on; None where there is none."""
    mark(model, -1)
    loaded = load_checkpoint(folder, model, optimizer)
    if loaded is None:
        return None
    assert model.lm_head.weight.flatten().tolist() == [float(loaded.step)] * model.lm_head.weight.numel()
    return loaded.step


def test_checkpoint_restores_weights_optimizer_and_progress(tmp_path, parts, tiny_model):
    model, optimizer = parts
    save_checkpoint(tmp_path, model, optimizer, progress(3))
    fresh = tiny_model(num_hidden_layers=1)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    other = torch.optim.AdamW(fresh.parameters(), lr=0.5)
    assert load_checkpoint(tmp_path, fresh, other) == progress(3)
    for (name, first), second in zip(model.named_parameters(), fresh.parameters(), strict=True):
        assert torch.equal(first, second), name
    for first, second in zip(model.parameters(), fresh.parameters(), strict=True):
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(optimizer.state[first][key], other.state[second][key])
    assert other.param_groups[0]["lr"] == 0.1


def test_no_checkpoint_is_none(tmp_path, parts):
    assert load_checkpoint(tmp_path, *parts) is None


def test_state_holds_nothing_that_needs_unpickling(tmp_path, parts):
    save_checkpoint(tmp_path, *parts, progress(3))
    state = torch.load(tmp_path / "checkpoint" / "state.pt", weights_only=True)
    assert state["progress"]["step"] == 3
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == ["state.pt", "weights.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_tied_weights_are_stored_once(tmp_path, tiny_model):
    model = tiny_model(num_hidden_layers=1, tie_word_embeddings=True)
    save_checkpoint(tmp_path, model, torch.optim.AdamW(model.parameters()), progress(1))
    names = load_file(tmp_path / "checkpoint" / "weights.safetensors").keys()
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


MOMENTS = ["mkdir", "save_file", "save", "fsync", *(f"rename {count}" for count in (1, 2)), "done"]


def crash_at(moment, patch):
    """Let the process end just before a call that changes the disk."""
    name, _, count = moment.partition(" ")
    homes = {"mkdir": Path, "rename": Path, "save_file": checkpoint, "save": checkpoint.torch, "fsync": checkpoint.os}
    if name not in homes:
        return
    real, calls = getattr(homes[name], name), []

    def call(*arguments, **options):
        calls.append(1)
        if len(calls) == int(count or 1):
            raise Crash
        return real(*arguments, **options)

    patch.setattr(homes[name], name, call)


@pytest.mark.parametrize("second", MOMENTS)
@pytest.mark.parametrize("first", MOMENTS)
def test_two_crashes_in_a_row_leave_a_whole_checkpoint(tmp_path, parts, monkeypatch, first, second):
    model, optimizer = parts
    model.lm_head.weight.grad = None
    mark(model, 1)
    save_checkpoint(tmp_path, model, optimizer, progress(1))
    last = 1
    for step, moment in ((2, first), (3, second)):
        mark(model, step)
        with monkeypatch.context() as patch:
            crash_at(moment, patch)
            try:
                save_checkpoint(tmp_path, model, optimizer, progress(step))
            except Crash:
                assert moment != "done"
        step_found = found(tmp_path, model, optimizer)
        assert step_found is not None
        assert last <= step_found <= step
        last = step_found
    mark(model, 4)
    save_checkpoint(tmp_path, model, optimizer, progress(4))
    assert found(tmp_path, model, optimizer) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_crash_while_the_oldest_is_removed_leaves_the_newest(tmp_path, parts, monkeypatch):
    model, optimizer = parts
    mark(model, 1)
    save_checkpoint(tmp_path, model, optimizer, progress(1))
    mark(model, 2)
    real = shutil.rmtree

    def stop_when_renamed(path, **options):
        if path.name.endswith(".old") and path.exists():
            raise Crash
        real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", stop_when_renamed)
    with pytest.raises(Crash):
        save_checkpoint(tmp_path, model, optimizer, progress(2))
    monkeypatch.undo()
    assert found(tmp_path, model, optimizer) == 2


def test_checkpoint_of_another_shape_is_refused(tmp_path, parts, tiny_model):
    save_checkpoint(tmp_path, *parts, progress(1))
    for fields in ({"num_hidden_layers": 2}, {"num_hidden_layers": 1, "intermediate_size": 8}):
        model = tiny_model(**fields)
        with pytest.raises(InputError, match="holds a model of another shape"):
            load_checkpoint(tmp_path, model, torch.optim.AdamW(model.parameters()))


def flipped(path, place, bit):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", ["weights.safetensors", "state.pt"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("bit", [0, 7])
def test_one_wrong_bit_is_no_checkpoint(tmp_path, parts, name, share, bit):
    model, optimizer = parts
    save_checkpoint(tmp_path, model, optimizer, progress(3))
    path = tmp_path / "checkpoint" / name
    flipped(path, int(share * path.stat().st_size), bit)
    with pytest.raises(InputError, match=r"checkpoint is damaged .*; remove the folder|checkpoint is damaged: weights"):
        load_checkpoint(tmp_path, model, optimizer)


@pytest.mark.parametrize("name", ["weights.safetensors", "state.pt"])
@pytest.mark.parametrize("left", [0, 7, 0.5, 0.99])
def test_a_checkpoint_cut_short_is_none(tmp_path, parts, name, left):
    model, optimizer = parts
    save_checkpoint(tmp_path, model, optimizer, progress(3))
    path = tmp_path / "checkpoint" / name
    path.write_bytes(path.read_bytes()[: int(left * path.stat().st_size) if left < 1 else left])
    with pytest.raises(InputError, match="checkpoint is damaged"):
        load_checkpoint(tmp_path, model, optimizer)


def test_weights_of_another_checkpoint_are_not_this_one(tmp_path, parts):
    model, optimizer = parts
    save_checkpoint(tmp_path / "a", model, optimizer, progress(3))
    with torch.no_grad():
        model.lm_head.weight.add_(1e-3)
    save_checkpoint(tmp_path / "b", model, optimizer, progress(4))
    other = (tmp_path / "b" / "checkpoint" / "weights.safetensors").read_bytes()
    (tmp_path / "a" / "checkpoint" / "weights.safetensors").write_bytes(other)
    with pytest.raises(InputError, match=r"weights\.safetensors is not what the run wrote; remove the folder"):
        load_checkpoint(tmp_path / "a", model, optimizer)


def test_a_checkpoint_of_an_older_version_has_no_digest(tmp_path, parts):
    model, optimizer = parts
    save_checkpoint(tmp_path, model, optimizer, progress(3))
    path = tmp_path / "checkpoint" / "state.pt"
    state = torch.load(path, weights_only=True)
    del state["weights"]
    torch.save(state, path)
    assert load_checkpoint(tmp_path, model, optimizer) == progress(3)
