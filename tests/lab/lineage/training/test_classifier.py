"""Training of one classifier: the best epoch is kept, equal seeds repeat, the world's random state stays."""

import pytest
import torch

import antiphase
from antiphase.base.errors import DivergedError, NonFiniteError
from antiphase.lab.lineage.data.text_batches import EncodedTexts, shuffled_batches, sorted_batches
from antiphase.lab.lineage.models.convolution import ConvolutionForSequenceClassification
from antiphase.lab.lineage.training.classifier import ClassifierTraining, train_classifier
from antiphase.models.initialization import seeded

TEXTS = EncodedTexts([[1 + (row % 2), 3 + row % 5, *[8] * (row % 4)] for row in range(23)], 0)
TARGETS = torch.tensor([row % 2 for row in range(23)])


def model():
    config = antiphase.ConvolutionConfig(
        vocab_size=9, pad_token_id=0, embedding_size=6, num_filters=3, num_labels=2, dropout=0.5
    )
    return seeded(lambda: ConvolutionForSequenceClassification(config), 3)


def trained(scores, *, seed=0, **fields):
    """A model, its curve, and its weights after each epoch; ``scores`` are what the development part says."""
    fresh, after = model(), []

    def evaluate(now):
        after.append({name: value.clone() for name, value in now.state_dict().items()})
        accuracy, loss = scores[len(after) - 1]
        return {"accuracy": accuracy, "loss": loss}

    training = ClassifierTraining(batch_size=5, **fields)
    curve = train_classifier(fresh, training, TEXTS, TARGETS, seed=seed, evaluate=evaluate)
    return fresh, curve, after


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def test_the_best_epoch_is_kept_and_waiting_ends_it():
    scores = [(0.5, 1.0), (0.7, 0.9), (0.7, 0.8), (0.7, 0.8), (0.6, 0.1), (0.9, 0.1)]
    found, curve, after = trained(scores, epochs=6, patience=2)
    assert [point.best for point in curve] == [False, False, True, False, False]
    assert same(found.state_dict(), after[2])
    assert not same(found.state_dict(), after[4])
    assert not found.training
    assert [point.step for point in curve] == [5, 10, 15, 20, 25]


def test_equal_seeds_repeat_and_leave_the_random_state():
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    first, curve, _ = trained([(0.5, 1.0)] * 2, epochs=2)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(12)
    again, same_curve, _ = trained([(0.5, 1.0)] * 2, epochs=2)
    other, _, _ = trained([(0.5, 1.0)] * 2, epochs=2, seed=1)
    assert curve == same_curve
    assert same(first.state_dict(), again.state_dict())
    assert not same(first.state_dict(), other.state_dict())


def test_it_learns():
    fresh = model()
    training = ClassifierTraining(batch_size=5, epochs=30, patience=30, learning_rate=1e-2)

    def evaluate(now):
        with torch.no_grad():
            now.eval()
            ids, mask = TEXTS.batch(range(23))
            logits = now(input_ids=ids, attention_mask=mask).logits
        return {"accuracy": float((logits.argmax(1) == TARGETS).float().mean()), "loss": 0.0}

    curve = train_classifier(fresh, training, TEXTS, TARGETS, seed=0, evaluate=evaluate)
    assert max(point.accuracy for point in curve) == 1.0
    assert curve[-1].train_loss < 0.5 * curve[0].train_loss


@pytest.mark.parametrize("fields", [{"warmup_steps": 1000}, {"gradient_norm": 1e-14}])
def test_a_long_warm_up_begins_small_and_longer_gradients_are_cut(fields):
    """Cut to far less than Adam's ε they move nothing."""
    start, moved = model().state_dict(), []
    for given in ({}, fields):
        found, _, _ = trained([(0.5, 1.0)], epochs=1, **given)
        moved.append(max(float((found.state_dict()[name] - start[name]).abs().max()) for name in start))
    assert moved[1] < moved[0] / 50


def test_the_training_loss_is_the_mean_over_texts_of_which_the_last_batch_has_fewer():
    config = antiphase.ConvolutionConfig(vocab_size=9, pad_token_id=0, embedding_size=6, num_labels=2, dropout=0.0)
    quiet = seeded(lambda: ConvolutionForSequenceClassification(config), 3)
    ids, mask = TEXTS.batch(range(23))
    with torch.no_grad():
        expected = float(quiet(input_ids=ids, attention_mask=mask, labels=TARGETS).loss)
    training = ClassifierTraining(batch_size=5, epochs=1, learning_rate=1e-12)
    curve = train_classifier(
        quiet, training, TEXTS, TARGETS, seed=0, evaluate=lambda now: {"accuracy": 0.5, "loss": 1.0}
    )
    assert curve[0].train_loss == pytest.approx(expected, rel=1e-5)


def test_batches_hold_every_text_once_and_little_padding():
    texts = EncodedTexts([[1] * (1 + (7 * row) % 50) for row in range(211)], 0)
    batches = shuffled_batches(texts, 10, 0, 1)
    assert sorted(row for batch in batches for row in batch) == list(range(211))
    assert batches == shuffled_batches(texts, 10, 0, 1)
    assert batches != shuffled_batches(texts, 10, 0, 2)
    padded = sum(texts.batch(batch)[0].numel() for batch in batches)
    assert padded < 1.2 * sum(map(len, texts.ids))
    assert sorted(row for batch in sorted_batches(texts, 100) for row in batch) == list(range(211))
    assert all(texts.batch(batch)[0].numel() <= 100 for batch in sorted_batches(texts, 100))


def test_padding_stands_on_the_right():
    ids, mask = EncodedTexts([[5], [], [6, 7]], 9).batch([2, 0, 1])
    assert ids.tolist() == [[6, 7], [5, 9], [9, 9]]
    assert mask.tolist() == [[1, 1], [1, 0], [0, 0]]


def test_a_loss_that_is_not_finite_ends_the_training():
    words = r"diverged at step \d+ of \d+, in epoch 1, its .* is (nan|inf); a lower .* --set MODEL.learning_rate=1e\+29"
    with pytest.raises(DivergedError, match=words):
        trained([(0.5, 1.0)] * 9, epochs=9, patience=9, learning_rate=1e30)


def test_a_measured_loss_that_is_no_number_ends_the_training():
    def evaluate(now):
        raise NonFiniteError("its logits are NaN")

    with pytest.raises(DivergedError, match="in epoch 1, when measured its logits are NaN; a lower"):
        train_classifier(model(), ClassifierTraining(), TEXTS, TARGETS, seed=0, evaluate=evaluate)
