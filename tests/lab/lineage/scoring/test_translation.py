"""Scores of translations by systems whose scores are known: perfect, constant, copying, silent, endless."""

import math
from types import SimpleNamespace

import pytest
import torch
from transformers.modeling_outputs import Seq2SeqLMOutput

import antiphase
from antiphase.lab.lineage.data.text_batches import EncodedTexts
from antiphase.lab.lineage.models.sequence_to_sequence import SequenceToSequenceForConditionalGeneration
from antiphase.lab.lineage.scoring.translation import (
    alignment_accuracy,
    alignment_hits,
    greedy_outputs,
    most_common_token,
    sentence_scores,
    teacher_forced,
)
from antiphase.models.configuration import ATTENTION_TYPES
from antiphase.models.initialization import seeded

PAD, UNKNOWN, START, END = range(4)
REFERENCES = [[7, 8, END], [9, END], [7, 7, 7, 6, END]]


def scores(outputs, references=REFERENCES):
    found = sentence_scores(outputs, references, end=END, unknown=UNKNOWN)
    return found.exact_match, found.tokens_in_place, found.ended


def test_systems_of_known_score():
    assert scores(REFERENCES) == (1, 1, 1)
    assert scores([[], [], []]) == (0, 0, 0)
    assert scores([[END], [END], [END]]) == (0, 0, 1)
    constant = most_common_token(REFERENCES)
    assert constant == 7
    assert scores([[constant] * len(reference) for reference in REFERENCES]) == (0, 4 / 10, 0)
    assert scores([[7, 8, END], [7, END], [7, 7, 7, 6, END]]) == (2 / 3, 9 / 10, 1)


def test_outputs_without_an_end_are_not_right():
    endless = [[*reference[:-1], 5, 5] for reference in REFERENCES]
    assert scores(endless) == (0, 7 / 10, 0)
    assert scores([[*reference, 5] for reference in REFERENCES])[0] == 0


def test_an_unknown_word_is_never_right():
    references = [[UNKNOWN, 8, END], [8, END]]
    assert scores(references, references) == (1 / 2, 4 / 5, 1)


def test_outputs_and_references_must_be_as_many():
    with pytest.raises(ValueError, match="1 outputs for 3 references"):
        scores([[7]])
    with pytest.raises(ValueError, match="0 outputs for 0"):
        scores([], [])


class Sayer(torch.nn.Module):
    """Predicts ``tokens[n]`` for place n with probability ``p``, the other tokens with equal shares of the rest."""

    def __init__(self, tokens, p, vocabulary=10):
        super().__init__()
        self.tokens, self.p, self.vocabulary = tokens, p, vocabulary
        self.device = torch.device("cpu")
        self.config = SimpleNamespace(eos_token_id=END)

    def forward(self, input_ids, attention_mask, labels):
        rest = math.log((1 - self.p) / (self.vocabulary - 1))
        logits = torch.full((*labels.shape, self.vocabulary), rest)
        for place in range(labels.shape[1]):
            logits[:, place, self.tokens[place]] = math.log(self.p)
        return Seq2SeqLMOutput(logits=logits)


def test_teacher_forced_loss_and_accuracy_are_means_over_real_tokens():
    texts = EncodedTexts([[4], [5], [6]], PAD)
    found = teacher_forced(Sayer([7, 8, 7, 6, END], 0.91), texts, EncodedTexts(REFERENCES, PAD))
    right = 2 + 0 + 4  # 7 8 | – | 7 7 6 </s>
    assert found["accuracy"] == pytest.approx(right / 10)
    said = [7, 8, 7, 6, END]
    seven = teacher_forced(Sayer(said, 0.91), texts, EncodedTexts(REFERENCES, PAD), unknown=7)
    counted = sum(a == b == 7 for line in REFERENCES for a, b in zip(line, said, strict=False))
    assert seven["accuracy"] == pytest.approx((right - counted) / 10) != found["accuracy"]
    assert seven["loss"] == found["loss"]
    assert found["loss"] == pytest.approx(-(right * math.log(0.91) + (10 - right) * math.log(0.01)) / 10, rel=1e-5)


def model_of(**fields):
    config = antiphase.SequenceToSequenceConfig(
        vocab_size=12, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, pad_token_id=PAD, bos_token_id=START,
        eos_token_id=END, max_position_embeddings=20, **fields,
    )  # fmt: skip
    return seeded(lambda: SequenceToSequenceForConditionalGeneration(config), 5)


@pytest.mark.parametrize("kind", ATTENTION_TYPES)
def test_each_output_token_is_the_likeliest_and_padding_changes_nothing(kind):
    model = model_of(attention_type=kind).train()
    with torch.no_grad():
        model.lm_head.weight[END] *= 2  # some of the texts end
    sources = EncodedTexts([[4, 5, 6, 7, 8], [9], [10, 11, 4], [6, 6]], PAD)
    found = greedy_outputs(model, sources, 7)
    assert model.training
    model.eval()
    for ids, output in zip(sources.ids, found, strict=True):
        expected = [START]
        while len(expected) < 8 and END not in expected:
            logits = model(torch.tensor([ids]), decoder_input_ids=torch.tensor([expected])).logits
            expected.append(int(logits[0, -1].argmax()))
        assert output == expected[1:]


def test_alignment_counts_the_largest_signed_weight_by_head_and_by_the_mean_of_heads():
    weights = torch.zeros(1, 2, 3, 4)  # the last row, that of the end token, has no right answer
    weights[0, 0, 0] = torch.tensor([0.6, 0.4, 0.0, 0.0])
    weights[0, 1, 0] = torch.tensor([0.0, 0.3, 0.0, -0.9])
    weights[0, :, 1, 2] = 1.0
    hits = alignment_hits(weights, [1, 2])
    assert hits["heads"].tolist() == [[1, 2]]
    assert hits["layers"].tolist() == [2]
    assert alignment_hits(weights, [3, 2])["heads"].tolist() == [[1, 1]]  # what is subtracted is not looked at


def test_known_alignments_have_known_accuracies_and_controls():
    model = model_of(attention_type="differential")
    sources = EncodedTexts([[4, 5, 6], [7, 8], [9]], PAD)  # of the last nothing is known
    targets = EncodedTexts([[8, 9, 10, END], [11, 4, END], [5, END]], PAD)
    alignments = [(2, 1, 0), (0, 1)]
    maps = {4: torch.eye(4, 3).flip(0)[1:], 7: torch.eye(3, 2)}

    def alignment(ids, labels):
        rows = torch.nn.functional.pad(maps[int(ids[0, 0])], (0, 0, 0, labels.shape[1]))[: labels.shape[1]]
        wrong = rows.roll(1, -1)
        return torch.stack([torch.stack([rows, -wrong]), torch.stack([wrong, wrong])])[:, None]

    model.alignment = alignment
    found = alignment_accuracy(model, sources, targets, alignments)
    assert found.words == 5
    assert found.layers == [1, 0]
    assert found.heads[0][0] == 1
    assert found.heads[1] == [0, 0]
    assert found.chance == pytest.approx((3 / 3 + 2 / 2) / 5)
    assert found.same_place == pytest.approx(3 / 5)


def test_a_pair_alone_and_in_the_model_give_the_same_rows():
    """Row n of the alignment is that of the prediction of target token n."""
    model = model_of().eval()
    ids, labels = torch.tensor([[4, 5, 6]]), torch.tensor([[7, 8, END]])
    chosen = model.alignment(ids, labels)[:, 0].argmax(-1)[0, 0].tolist()
    found = alignment_accuracy(
        model, EncodedTexts(ids.tolist(), PAD), EncodedTexts(labels.tolist(), PAD), [tuple(chosen[:2])]
    )
    assert found.heads[0][0] == 1
