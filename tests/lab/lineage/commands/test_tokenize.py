"""Words, pieces and ids of a text from the command line, in any script, with everything visible."""

import pytest

from antiphase.base.errors import InputError
from antiphase.lab.lineage.commands.tokenize.measure import TokenizeSettings, tokenize, visible
from antiphase.lab.lineage.data.vocabularies import TOKENIZERS, word_spans
from support.records import values

TEXT = "The cat's\ttoys: 東京タワーへ行く。 e\u0301\u200b 👍\x00"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_rows_hold_every_piece_and_word_in_order(name, text_tokenizer):
    (found,) = tokenize(TokenizeSettings(text=TEXT, tokenizers=[name])).values["tokenizers"]
    pieces = [piece for row in found["rows"] for piece in row["pieces"]]
    assert found["pieces"] == len(pieces)
    assert found["unknown"] == 0
    words = [visible(TEXT[begin:end]) for begin, end in word_spans(TEXT)]
    assert [word for row in found["rows"] for word in row["words"]] == words
    assert found["pieces_per_word"] == len(pieces) / len(words)
    for row in found["rows"]:
        for piece in row["pieces"]:
            assert piece["text"]
            assert piece["text"].isprintable()
            assert "\ufffd" not in piece["text"]
            assert not any(letter.isspace() for letter in piece["text"])


def test_a_character_of_several_pieces_stays_readable():
    (found,) = tokenize(TokenizeSettings(text="x 東", tokenizers=["bpe"], vocabulary=258)).values["tokenizers"]
    assert [piece["text"] for piece in found["rows"][-1]["pieces"]] == ["東[1/3]", "東[2/3]", "東[3/3]"]


def test_the_space_before_a_text_is_not_part_of_its_first_character():
    (found,) = tokenize(TokenizeSettings(text="日", tokenizers=["unigram"])).values["tokenizers"]
    assert [piece["text"] for row in found["rows"] for piece in row["pieces"]] == ["▁", "日"]


def test_a_piece_of_several_words_names_them_all(tmp_path):
    (tmp_path / "data.txt").write_text("words of english only")
    request = TokenizeSettings(text="东京 of", data=[str(tmp_path / "data.txt")], tokenizers=["unigram"])
    (found,) = tokenize(request).values["tokenizers"]
    assert found["unknown"] == 1
    assert [row["words"] for row in found["rows"]] == [["东", "京"], ["of"]]


def test_a_table_with_several_columns_of_text_is_refused_with_the_commands_own_flag(tmp_path):
    (tmp_path / "data.csv").write_text("title,body\na,b\n")
    with pytest.raises(InputError, match=r"columns: title, body\); name the one .* with --text-field NAME"):
        tokenize(TokenizeSettings(text="a", data=[str(tmp_path / "data.csv")]))


def test_whatever_has_no_shape_becomes_an_escape():
    assert visible("a b\n\t\x00\u200b\u0301") == "a␣b\\n\\t\\x00\\u200b\u0301"
    assert visible("\u0301") == "◌\u0301"
    assert visible("日é👍") == "日é👍"


def test_a_tokenizer_learned_from_data_cuts_its_words_less(tmp_path, generated_text):
    path = tmp_path / "book.txt"
    path.write_text(generated_text)
    text = generated_text[:200]
    ratios = {}
    for size in (260, 900):
        request = TokenizeSettings(text=text, data=[str(path)], tokenizers=["bpe", "unigram"], vocabulary=size)
        ratios[size] = [row["pieces_per_word"] for row in tokenize(request).values["tokenizers"]]
    assert all(small > large for small, large in zip(ratios[260], ratios[900], strict=True))


def test_command_shows_every_kind_and_saves_a_record(antiphase, tmp_path, text_tokenizer):
    text_tokenizer.save_pretrained(tmp_path / "own")
    code, out, _ = antiphase("tokenize", ["[bold]brackets[/] 日本"], "--tokenizer words --tokenizer own --output r")
    assert code == 0
    assert "Pieces of own" in out
    assert "Pieces per word" in out
    assert "learned from the text itself" in " ".join(out.split())
    assert [row["tokenizer"] for row in values(tmp_path / "r")["tokenizers"]] == ["words", "own"]
    code, out, _ = antiphase("tokenize brackets", "--tokenizer", "own")
    assert "learned from the text itself" not in " ".join(out.split())
