"""Pretrained word vectors: both formats, what they replace, and files that cannot be used."""

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import antiphase
from antiphase.base.errors import InputError

WORDS = {"[PAD]": 0, "the": 1, "cat": 2, ". . .": 3, "naïve": 4, "sat": 5, "x\u0085y": 6}
GLOVE = "the 0.5 -1 2e-1\n. . . 1 2 3\nnaïve 4 5 6\nunknown 7 8 9\nx\u0085y 1 1 2\nthe 9 9 9\n"


def model(**fields):
    sizes = {"vocab_size": 7, "embedding_size": 3, "num_filters": 2, "pad_token_id": 0}
    return AutoModelForSequenceClassification.from_config(antiphase.ConvolutionConfig(**{**sizes, **fields}))


def written(path, text):
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("text", [
    GLOVE, "6 3\n" + GLOVE, GLOVE.replace("\n", "\r\n"), GLOVE.replace("\n", " \n"), GLOVE.replace("the ", "the\t"),
], ids=["GloVe", "word2vec", "Windows", "a space at the end", "a tab after the word"])  # fmt: skip
def test_words_of_the_file_get_its_vectors_and_the_others_its_spread(tmp_path, text):
    network = model()
    before = network.get_input_embeddings().weight.detach().clone()
    assert antiphase.set_word_vectors(network, written(tmp_path / "vectors.txt", text), WORDS) == 4
    weight = network.get_input_embeddings().weight
    expected = torch.tensor([[0.5, -1.0, 0.2], [1, 2, 3], [4, 5, 6], [1, 1, 2]])
    assert torch.equal(weight[[1, 3, 4, 6]], expected)
    assert not weight[0].any()
    torch.testing.assert_close(weight[[2, 5]].std(), expected.std())
    torch.testing.assert_close(
        torch.nn.functional.normalize(weight[[2, 5]]), torch.nn.functional.normalize(before[[2, 5]])
    )
    assert weight.requires_grad


def test_vectors_go_into_every_kind_of_model(tmp_path):
    path = written(tmp_path / "vectors.txt", "the 1 2 3 4\n")
    for config in (
        antiphase.RecurrentConfig(vocab_size=7, embedding_size=4),
        antiphase.VanillaConfig(vocab_size=7, hidden_size=4, num_attention_heads=2),
        antiphase.ConvolutionConfig(vocab_size=7, embedding_size=4),
    ):
        network = AutoModelForSequenceClassification.from_config(config)
        assert antiphase.set_word_vectors(network, path, WORDS) == 1
        assert torch.equal(network.model.embed_tokens.weight[1], torch.tensor([1.0, 2.0, 3.0, 4.0]))


@pytest.mark.parametrize(("text", "message"), [
    ("the 1 2 3\ncat 1 2\n", r"vectors.txt, line 2: 2 numbers, but the model's embeddings are 3 wide"),
    ("2 4\nthe 1 2 3 4\n", r"vectors.txt, line 1: vectors of width 4, but the model's embeddings are 3 wide"),
    ("the 1 2 3\ncat 1 two 3\n", r"vectors.txt, line 2: not a word and 3 numbers"),
    ("the 1 2 nan\n", r"vectors.txt, line 1: a number that is not finite"),
    ("the 1 2 3\n\n", r"vectors.txt, line 2: 0 numbers"), ("dog 1 2 3\n", r"vectors.txt: contains none of the 7 words"),
    ("the 1 2 3 4\n", r"vectors.txt: contains none .* check that its vectors are 3 wide"),
    ("", r"vectors.txt: contains none of the 7 words"),
])  # fmt: skip
def test_a_file_that_does_not_fit_is_refused_by_line_and_changes_nothing(tmp_path, text, message):
    network = model()
    before = network.get_input_embeddings().weight.detach().clone()
    with pytest.raises(InputError, match=message):
        antiphase.set_word_vectors(network, written(tmp_path / "vectors.txt", text), WORDS)
    assert torch.equal(network.get_input_embeddings().weight, before)


def test_a_missing_file_and_a_model_without_vectors_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"none\.txt: there is no such file"):
        antiphase.set_word_vectors(model(), tmp_path / "none.txt", WORDS)
    with pytest.raises(InputError, match="learned embeddings"):
        antiphase.set_word_vectors(model(embeddings="one_hot"), written(tmp_path / "a.txt", GLOVE), WORDS)
