"""Studies of the line from the command line: what they write, that they measure what they say, what they refuse."""

from dataclasses import replace

import pytest
import torch

from antiphase.base.errors import InputError
from antiphase.lab.lineage.classifiers import CLASSIFIERS
from antiphase.lab.lineage.data.agreement import LABELS, words
from antiphase.lab.lineage.data.vocabularies import train_words
from antiphase.lab.lineage.names import CLASSIFIERS as ORDER
from antiphase.lab.lineage.one_width import one_width_classifiers
from antiphase.lab.lineage.studies.dependency import measure as dependency
from antiphase.lab.lineage.studies.gradients import measure as gradients
from antiphase.lab.lineage.studies.throughput import measure as throughput
from support.records import values

SMALL = "--set hidden_size=8"


@pytest.fixture
def tokenizer():
    return train_words([" ".join(words())], len(words()) + 2)


def test_the_line_is_every_classifier_at_one_width(tokenizer):
    assert sorted(ORDER) == sorted(CLASSIFIERS)
    for name, one in one_width_classifiers().items():
        model = one.build(tokenizer, LABELS, seed=0)
        width = getattr(model.config, "hidden_size", None) or model.config.num_filters
        assert (width, model.config.embedding_width, model.config.dropout) == (64, 64, 0.0), name


@pytest.mark.slow
def test_dependency_writes_every_distance_before_and_after_training(antiphase, tmp_path):
    code, out, err = antiphase(
        "study",
        f"dependency --models rnn,transformer --lengths 4-9 --tested 4,9 --held-out 6,20 --samples 300 "
        f"--test-samples 40 --epochs 2 --seeds 0,1 {SMALL} --output r",
    )
    assert code == 0, err
    found = values(tmp_path / "r")
    assert [(row["model"], row["seed"]) for row in found["runs"]] == [
        (name, seed) for seed in (0, 1) for name in ("rnn", "transformer")
    ]
    assert all(len(run_["curve"]) == 2 for run_ in found["runs"])
    keys = {(row["model"], row["seed"], row["trained"], row["distance"]) for row in found["rows"]}
    assert len(keys) == len(found["rows"]) == 2 * 2 * 2 * 4
    assert sorted({row["distance"] for row in found["rows"]}) == [4, 6, 9, 20]
    assert found["trained_distances"] == [4, 5, 7, 8, 9]
    assert all(row["samples"] == 40 and row["misled"]["samples"] == 20 for row in found["rows"])
    for row in found["summary"]:
        own = [one["accuracy"] for one in found["rows"]
               if all(one[key] == row[key] for key in ("model", "trained", "distance"))]  # fmt: skip
        assert row["accuracy"] == pytest.approx(sum(own) / 2)
        assert row["held_out"] == (row["distance"] in (6, 20))
        assert row["interval_is"] == "over seeds"
    assert "Accuracy by dependency length" in out
    assert "6*" in out
    assert "data:image/svg+xml" in (tmp_path / "r" / "report.html").read_text()


@pytest.mark.slow
def test_a_network_learns_to_bridge_a_short_clause_and_repeats(tmp_path):
    request = dependency.DependencySettings(
        models=["birnn"], lengths=[4], tested=[4], held_out=[5], samples=1600, test_samples=200, epochs=6, seeds=[0],
        device="cpu",
    )  # fmt: skip
    first = dependency.dependency(request, tmp_path / "a").values
    known, new = (row for row in first["summary"] if row["trained"])
    assert known["accuracy"] > 0.97
    assert known["misled"]["accuracy"] > 0.95
    assert all(row["interval"][0] < 0.5 < row["interval"][1] for row in first["summary"] if not row["trained"])
    assert known["interval_is"] == "Wilson over sentences"
    assert (known["held_out"], new["held_out"]) == (False, True)
    again = dependency.dependency(request, tmp_path / "b").values
    assert again["rows"] == first["rows"]


def test_training_and_test_sentences_are_not_the_same_and_seeds_have_their_own(tokenizer):
    request = dependency.DependencySettings()
    parts = {
        key: {one.text for one in dependency.part_of(request, tokenizer, [8, 24], 400, *key).sentences}
        for key in ((0, "train"), (1, "train"), (0, "development"), ("test",))
    }
    assert all(len(part) > 700 for part in parts.values())
    found = list(parts.values())
    assert all(not one & other for place, one in enumerate(found) for other in found[:place])


def test_every_model_runs_all_epochs_and_has_positions_for_every_sentence(tokenizer):
    request = dependency.DependencySettings(epochs=7, held_out=[6, 300], depth=4)
    longest = max(map(len, dependency.part_of(request, tokenizer, [300], 200, "test").texts.ids))
    for name, one in dependency.chosen_models(request).items():
        assert one.training.epochs == one.training.patience == 7, name
        config = one.build(tokenizer, LABELS, seed=0).config
        assert getattr(config, "max_position_embeddings", longest) >= longest > 300


SHORT = {
    "dependency": (
        dependency, "_trained", 2,
        dependency.DependencySettings(
            models=["rnn", "transformer"], lengths=[4], tested=[4], held_out=[5], samples=40, test_samples=4, epochs=1,
            seeds=[0], settings=["hidden_size=8"], device="cpu",
        ),
    ),
    "gradients": (
        gradients, "_measured", 3,  # norms before and after the sublayers of the second model
        gradients.GradientsSettings(
            models=["lstm", "transformer"], layers=2, steps=[0, 1], seeds=[0], settings=["hidden_size=8"], device="cpu"
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHORT)
def test_a_study_that_was_killed_continues_after_its_last_model(tmp_path, monkeypatch, name):
    module, part, parts, request = SHORT[name]
    run, original, done = getattr(module, name), getattr(module, part), []
    monkeypatch.setattr(gradients, "PAIRS", 8)  # of sentences of each distance; thousands take long to make

    def counted(*arguments):
        if done == ["stop"]:
            raise KeyboardInterrupt
        done.append("stop")
        return original(*arguments)

    monkeypatch.setattr(module, part, counted)
    with pytest.raises(KeyboardInterrupt):
        run(request, tmp_path / "stopped")
    with pytest.raises(InputError, match="add resume to continue"):
        run(request, tmp_path / "stopped")
    with pytest.raises(InputError, match=r"other settings or inputs \(--seeds\)"):
        run(replace(request, seeds=[1]), tmp_path / "stopped", resume=True)

    done.clear()
    monkeypatch.setattr(module, part, lambda *arguments: done.append(part) or original(*arguments))
    resumed = run(request, tmp_path / "stopped", resume=True)
    assert len(done) == parts - 1
    assert run(request, tmp_path / "stopped", resume=True).values == resumed.values
    assert len(done) == parts - 1  # a finished study is read
    assert _without_times(resumed) == _without_times(run(request, tmp_path / "whole"))


def _without_times(record):
    rows = [*record.values["rows"], *record.values.get("runs", [])]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.mark.slow
def test_throughput_times_the_same_tokens_at_every_length(antiphase, tmp_path, monkeypatch):
    seen = []
    original = throughput.training_step

    def watched(model, length, request, classifier):
        work = original(model, length, request, classifier)

        def step():
            before = [parameter.detach().clone() for parameter in model.parameters()]
            loss = work()
            seen.append((type(model).__name__, length, loss.numel()))
            assert any(not torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True))
            assert all(parameter.grad is None for parameter in model.parameters())
            return loss

        return step

    monkeypatch.setattr(throughput, "training_step", watched)
    code, out, err = antiphase(
        "study throughput --models lstm,transformer,differential --lengths 8,32 --tokens 64 --rounds 3",
        SMALL,
        "--output r",
    )
    assert code == 0, err
    found = values(tmp_path / "r")
    assert found["baseline"] == "transformer"
    assert [(row["model"], row["length"]) for row in found["speeds"]] == [
        (name, length) for length in (8, 32) for name in ("lstm", "transformer", "differential")
    ]
    for row in found["speeds"]:
        assert row["tokens_per_second"] == pytest.approx(64 / row["seconds"])
        assert row["rounds"] == 3
    assert {(row["subject"], row["baseline"]) for row in found["rows"]} == {
        ("lstm", "transformer"), ("differential", "transformer")
    }  # fmt: skip
    assert len(seen) == 2 * 3 * (3 + 1)  # rounds and a warm-up
    assert "Time against the transformer" in out
    code, _, err = antiphase("study", f"throughput --models lstm --lengths 8 --tokens 64 --rounds 1 {SMALL} --output s")
    assert code == 0, err
    assert values(tmp_path / "s")["baseline"] == "lstm"


def test_tokens_that_fill_no_sequence_are_not_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(throughput, "paired_times", lambda work, **options: {name: [0.5] for name in work})
    request = throughput.ThroughputSettings(models=["rnn"], lengths=[7], tokens=20, device="cpu")
    (row,) = throughput.throughput(request, tmp_path / "r").values["speeds"]
    assert row["tokens_per_second"] == 2 * 14


@pytest.mark.slow
def test_gradients_by_place_and_norm(antiphase, tmp_path):
    code, out, err = antiphase(
        "study gradients --models lstm,differential --norms rms_norm,batch_norm --layers 3 --steps 0,2 --seeds 0,1",
        SMALL,
        "--output r",
    )
    assert code == 0, err
    rows = values(tmp_path / "r")["rows"]
    forms = {(row["model"], row["place"], row["norm"]) for row in rows}
    assert forms == {("lstm", None, None)} | {
        ("differential", place, norm) for place in ("pre", "post") for norm in ("rms_norm", "batch_norm")
    }
    assert len(rows) == 5 * 2 * 2
    assert all(len(row["gradient_norms"]) == 3 and min(row["gradient_norms"]) > 0 for row in rows)
    assert len({row["loss"] for row in rows}) == len(rows)  # no two forms are the same model
    assert "Gradients of the last layer over the first, 3 layers" in out


@pytest.mark.parametrize("name", ["rnn", "bilstm", "transformer", "differential"])
def test_the_norm_of_a_layer_is_that_of_its_gradient_alone(tokenizer, name):
    one = one_width_classifiers()[name]
    model = replace(one, sizes={**one.sizes, "num_hidden_layers": 3}).build(tokenizer, LABELS, seed=0).train()
    layers = gradients.layers_of(model)
    assert len(layers) == 3
    counted = [id(parameter) for layer in layers for parameter in layer]
    assert len(set(counted)) == len(counted)
    others = {n.split(".")[1] for n, p in model.named_parameters() if id(p) not in set(counted)}
    assert others <= {"embed_tokens", "norm", "weight", "bias"}  # the last two of the classifier
    batches = gradients.training_batches(tokenizer, torch.device("cpu"), 0, pairs=20)
    held = [next(batches) for _ in range(2)]
    found = gradients.gradient_norms(model, held)
    expected = []
    for batch in held:
        grads = torch.autograd.grad(model(**batch).loss, [p for layer in layers for p in layer])
        sizes = [len(layer) for layer in layers]
        split = [torch.cat([g.flatten() for g in part]) for part in _cut(grads, sizes)]
        expected.append([float(part.norm()) for part in split])
    means = [sum(pair) / 2 for pair in zip(*expected, strict=True)]
    assert found["gradient_norms"] == pytest.approx(means, rel=1e-4)
    assert all(parameter.grad is None for parameter in model.parameters())


def _cut(items, sizes):
    start = 0
    for size in sizes:
        yield items[start : start + size]
        start += size


def test_gradients_are_measured_on_sentences_that_are_not_trained_on(tmp_path, monkeypatch):
    def rows(batches):
        return {tuple(ids[mask.bool()].tolist()) for one in batches
                for ids, mask in zip(one["input_ids"], one["attention_mask"], strict=True)}  # fmt: skip

    seen = []

    def watched(model, classifier, steps, batches, held, seed):
        seen.append((rows(held), rows(next(batches) for _ in range(75))))  # an epoch
        return iter(())

    monkeypatch.setattr(gradients, "train_and_measure", watched)
    request = gradients.GradientsSettings(models=["rnn"], layers=2, seeds=(0, 1), device="cpu")
    gradients.gradients(request, tmp_path / "r")
    (held, first), (again, second) = seen
    assert held == again
    assert len(held) > 100
    assert len(first) > 2000
    assert not held & (first | second)
    assert not first & second


@pytest.mark.slow
def test_gradients_with_dropout_depend_on_the_seed_alone(tmp_path):
    def losses(folder, steps):
        request = gradients.GradientsSettings(
            models=["transformer"], layers=2, norms=("layer_norm",), steps=steps, settings=("dropout=0.3",),
            device="cpu",
        )  # fmt: skip
        rows = gradients.gradients(request, tmp_path / folder).values["rows"]
        return {(row["place"], row["step"]): row["loss"] for row in rows}

    first = losses("a", (0, 2))
    torch.manual_seed(5)
    assert losses("b", (0, 2)) == first
    more = losses("c", (0, 1, 2))
    assert {key: more[key] for key in first} == first


def test_measuring_leaves_batch_norms_as_they_are(tokenizer):
    one = one_width_classifiers()["transformer"]
    model = replace(one, sizes={**one.sizes, "norm": "batch_norm"}).build(tokenizer, LABELS, seed=0).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batches = gradients.training_batches(tokenizer, torch.device("cpu"), 0, pairs=20)
    gradients.gradient_norms(model, [next(batches)])
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    model(**next(batches))
    assert any(not torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
