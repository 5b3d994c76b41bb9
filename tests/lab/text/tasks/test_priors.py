"""Corrections for labels' priors, and measures of a set, against formulas written sample by sample."""

import math

import pytest
import torch

from antiphase.lab.scoring.likelihood import score_options
from antiphase.lab.scoring.priors import (
    area_under_curve,
    balanced_accuracy,
    content_free_corrected,
    label_measures,
    mean_centred,
)
from antiphase.lab.scoring.task_scores import all_scores, log_probabilities, score_samples
from antiphase.lab.text.tasks.tasks import load_task
from antiphase.lab.text.tokenization import train_tokenizer


def drawn(count, labels, *, signal=1.0, seed=0):
    """Scores that favour the target by ``signal``, and unbalanced targets."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.arange(1, labels + 1, dtype=torch.float64)
    targets = torch.multinomial(weights, count, replacement=True, generator=generator)
    scores = torch.randn(count, labels, generator=generator, dtype=torch.float64)
    scores[torch.arange(count), targets] += signal
    return scores, targets


def pairs_auc(scores, targets):
    """Share of pairs of a sample of a label and one of another that the label's centred probability puts in order."""
    found = []
    logs = [[s - math.log(sum(map(math.exp, row))) for s in row] for row in scores.tolist()]
    means = [sum(column) / len(logs) for column in zip(*logs, strict=True)]
    centred = [[math.exp(s - mean) for s, mean in zip(row, means, strict=True)] for row in logs]
    shares = [[part / sum(row) for part in row] for row in centred]
    for label in sorted(set(targets.tolist())):
        own = [row[label] for row, target in zip(shares, targets.tolist(), strict=True) if target == label]
        others = [row[label] for row, target in zip(shares, targets.tolist(), strict=True) if target != label]
        won = sum((one > two) + 0.5 * (one == two) for one in own for two in others)
        found.append(won / len(own) / len(others))
    return sum(found) / len(found)


@pytest.mark.parametrize("labels", [2, 5])
def test_measures_are_those_of_their_definitions(labels):
    scores, targets = drawn(83, labels)
    scores[40:60] = scores[40:41]  # ties
    found = label_measures(scores, targets)
    answers = [max(range(labels), key=row.__getitem__) for row in scores.tolist()]
    recalls = []
    for label in range(labels):
        mine = [answer == label for answer, target in zip(answers, targets.tolist(), strict=True) if target == label]
        recalls.append(sum(mine) / len(mine))
    hits = [answer == target for answer, target in zip(answers, targets.tolist(), strict=True)]
    assert found["accuracy"] == pytest.approx(sum(hits) / len(hits))
    assert found["balanced_accuracy"] == pytest.approx(sum(recalls) / labels)
    assert found["auc"] == pytest.approx(pairs_auc(scores, targets))
    assert found["content_free_accuracy"] is None


def test_two_labels_have_one_curve():
    scores, targets = drawn(60, 2)
    assert area_under_curve(scores, targets) == pytest.approx(area_under_curve(scores.flip(1), 1 - targets))
    assert area_under_curve(scores, torch.zeros_like(targets)) is None
    assert balanced_accuracy(scores, torch.zeros_like(targets)) == float((scores.argmax(1) == 0).double().mean())


@pytest.mark.parametrize("labels", [2, 4])
def test_a_moved_prior_moves_the_accuracy_alone(labels):
    """What favours a label for every prompt reads nothing better; content shows the same favour, and corrects it."""
    scores, targets = drawn(400, labels)
    favour = torch.linspace(0, 3, labels, dtype=torch.float64)
    free = torch.zeros(1, labels, dtype=torch.float64)
    before, after = label_measures(scores, targets, free), label_measures(scores + favour, targets, free + favour)
    assert after["mean_centred_accuracy"] == before["mean_centred_accuracy"]
    assert after["content_free_accuracy"] == before["content_free_accuracy"] == before["accuracy"]
    assert after["accuracy"] != before["accuracy"]
    assert after["auc"] == pytest.approx(before["auc"])
    torch.testing.assert_close(mean_centred(scores + favour).argmax(1), mean_centred(scores).argmax(1))


def test_corrections_are_those_of_the_papers():
    scores, _ = drawn(7, 3)
    free = torch.tensor([[0.0, 1.0, 2.0], [1.0, 1.0, 0.0]], dtype=torch.float64)
    for row, found in zip(scores.tolist(), content_free_corrected(scores, free).tolist(), strict=True):
        shares = [math.exp(s) / sum(map(math.exp, row)) for s in row]
        prior = [sum(math.exp(f[label]) / sum(map(math.exp, f)) for f in free.tolist()) / 2 for label in range(3)]
        assert found == pytest.approx([math.log(share / p) for share, p in zip(shares, prior, strict=True)])
    torch.testing.assert_close(mean_centred(scores).mean(0), torch.zeros(3, dtype=torch.float64))


def test_a_model_that_knows_only_the_prior_is_at_chance_after_centring():
    _, targets = drawn(900, 3, seed=3)
    favour = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    noise = torch.randn(900, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 1e-3
    found = label_measures(favour + noise, targets)
    assert found["accuracy"] == pytest.approx(0.5, abs=0.05)  # the commonest label
    assert found["balanced_accuracy"] == pytest.approx(1 / 3)
    assert found["mean_centred_accuracy"] == pytest.approx(1 / 3, abs=0.05)
    assert found["auc"] == pytest.approx(0.5, abs=0.05)


def test_all_scores_are_those_of_the_separate_functions(tmp_path, tiny_model):
    tokenizer = train_tokenizer(["the cat sat on the mat and a dog ran to the log"] * 9, 290)
    lines = "".join(
        f'{{"text": "the cat", "choices": ["sat", "ran to the log"], "label": {i % 2}}}\n' for i in range(4)
    )
    (tmp_path / "t.jsonl").write_text(lines)
    (tmp_path / "t.yaml").write_text('{kind: choice, data: t.jsonl, prompt: "{{ text }}", normalize: tokens}')
    samples = load_task(str(tmp_path / "t.yaml"), tokenizer).samples
    model = tiny_model("softmax", vocab_size=len(tokenizer))
    found = all_scores(model, samples)
    assert found.metric.equal(score_samples(model, samples))
    assert found.log_probability.equal(log_probabilities(model, samples).double())
    for sample, options in zip(samples, found.options, strict=True):
        (scored,) = score_options(model, [sample.prompt], [sample.options])
        lengths = torch.tensor([len(option) for option in sample.options])
        torch.testing.assert_close(options.float(), scored.log_likelihood / lengths)
