"""Training of one translator: the rate rises and falls, losses are means over tokens, equal seeds repeat."""

import pytest
import torch

import antiphase
from antiphase.lab.lineage.data.text_batches import EncodedTexts
from antiphase.lab.lineage.models.sequence_to_sequence import SequenceToSequenceForConditionalGeneration
from antiphase.lab.lineage.scoring.translation import teacher_forced
from antiphase.lab.lineage.training.translator import TranslatorTraining, train_translator
from antiphase.models.initialization import seeded

SOURCES = EncodedTexts([[3 + (row + n) % 5 for n in range(1 + row % 4)] for row in range(23)], 0)
TARGETS = EncodedTexts([[*reversed(ids), 2] for ids in SOURCES.ids], 0)


def trained(*, seed=0, **fields):
    config = antiphase.SequenceToSequenceConfig(
        vocab_size=9, hidden_size=12, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, dropout=0.1 if seed else 0.0,
    )  # fmt: skip
    model = seeded(lambda: SequenceToSequenceForConditionalGeneration(config), 3)
    before = teacher_forced(model, SOURCES, TARGETS)
    training = TranslatorTraining(batch_size=5, **fields)
    curve = train_translator(
        model, training, SOURCES, TARGETS, seed=seed, evaluate=lambda now: teacher_forced(now, SOURCES, TARGETS)
    )
    return model, before, curve


def test_the_rate_rises_to_its_peak_and_falls_to_zero():
    training = TranslatorTraining(learning_rate=0.5, warmup_steps=4)
    assert [training.rate(step, 100) for step in (0, 1, 50, 99)] == pytest.approx([0.125, 0.2475, 0.25, 0.005])


def test_the_training_loss_is_the_mean_over_target_tokens_and_padding_has_no_part():
    """With steps too small to matter it is what the evaluation says of the same texts."""
    _, before, curve = trained(epochs=1, learning_rate=1e-12)
    assert curve[0].train_loss == pytest.approx(before["loss"], rel=1e-5)
    assert curve[0].loss == pytest.approx(before["loss"], rel=1e-5)


def test_every_epoch_is_run_and_the_model_learns():
    model, before, curve = trained(epochs=12, learning_rate=1e-2, warmup_steps=5)
    assert [point.epoch for point in curve] == list(range(1, 13))
    assert curve[-1].step == 12 * 5
    assert curve[-1].loss < before["loss"] / 2
    assert not model.training


def test_equal_seeds_repeat_and_leave_the_random_state():
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    _, _, curve = trained(seed=1, epochs=2)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(12)
    assert trained(seed=1, epochs=2)[2] == curve
    assert trained(seed=2, epochs=2)[2] != curve
