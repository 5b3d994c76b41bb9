"""The pure parts of the benchmark of an encoder: parts of a set, nearest class means, the choice of heads, sinks."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, BertModel

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.lineage.data.labelled_texts import Example
from experiments import encoder_calibration as benchmark
from tools.tables import real_model as tables


def tokenizer(text, truncation):
    """Text "number length" becomes the token ``number``, ``length`` times."""
    number, length = map(int, text.split())
    return {"input_ids": [number] * length}


def examples(count, label=lambda i: "even" if i % 2 == 0 else "odd"):
    return [Example(f"x:{i}", f"{i + 1} {1 + i % 3}", label(i)) for i in range(count)]


class Planted:
    """A model whose states lie around the direction of a text's class; padding has wild states."""

    def __call__(self, input_ids, attention_mask):
        even = (input_ids % 2 == 1).double()  # text i has the token i + 1
        states = torch.stack([even, 1 - even, 0.1 * torch.sin(input_ids.double())], dim=-1)
        return SimpleNamespace(last_hidden_state=torch.where(attention_mask[..., None] > 0, states, 1e6))


def test_parts_are_disjoint_and_repetitions_count_once():
    texts = benchmark.Texts([*examples(30), *examples(30)], tokenizer, (7, 9, 14), "x")
    parts = [texts.made, texts.searched, texts.judged]
    assert [len(part) for part in parts] == [7, 9, 14]
    seen = [texts.tokens[row][0] for part in parts for row in part.tolist()]
    assert sorted(seen) == list(range(1, 31))
    with pytest.raises(InputError, match="--data x: it has 30 different texts, and 31 are needed"):
        benchmark.Texts([*examples(30), *examples(30)], tokenizer, (7, 9, 15), "x")


def test_the_default_parts_fit_the_smallest_set():
    assert sum(map(int, benchmark.PARTS.split(","))) < 3700


def test_a_text_gets_the_class_whose_mean_is_nearest():
    texts = benchmark.Texts(examples(40), tokenizer, (10, 10, 20), "x")
    assert texts.right(Planted(), texts.judged, nullcontext()).all()
    swapped = benchmark.Texts(examples(40), tokenizer, (10, 10, 20), "x")
    swapped.labels[swapped.judged] = 1 - swapped.labels[swapped.judged]  # class means come from the first part alone
    assert not swapped.right(Planted(), swapped.judged, nullcontext()).any()


def test_heads_are_chosen_on_the_part_for_choosing_alone(monkeypatch):
    monkeypatch.setattr(benchmark, "setting_of", lambda model, heads: list(heads))
    helps = {"searched": (0, 1), "judged": (1, 0)}

    class Texts:
        made, searched, judged, tokens = torch.arange(3), torch.arange(3, 8), torch.arange(8, 28), [[1]]

        def right(self, model, asked, heads):
            part = "searched" if len(asked) == 5 else "judged"
            return torch.arange(len(asked)) < 2 + 2 * (helps[part] in heads)

    model = SimpleNamespace(config=SimpleNamespace(num_hidden_layers=2, num_attention_heads=2))
    found = benchmark.measured(model, Texts(), "x")
    assert found["kept"] == [(0, 1)]
    assert found["changed"] == 1
    kept, every = found["rows"][:2]
    assert (kept["setting"], kept["gain"]) == ("kept heads", 0)
    assert (every["setting"], every["gain"]) == ("all heads", 2 / 20)


def test_shares_of_sinks_are_those_of_the_models_own_weights():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8,
        initializer_range=3.0,
    )  # fmt: skip
    model = BertModel(config).eval()
    tokens = [torch.randint(50, (length,)).tolist() for length in (13, 21, 30)]
    rows = benchmark.sinks_of(model, SimpleNamespace(tokens=tokens))
    model.set_attn_implementation("eager")
    expected = []
    for ids in tokens:
        with torch.no_grad():
            maps = model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
        received = torch.stack(maps)[:, 0].mean(-2)  # (layers, heads, N)
        sinks = received > benchmark.ALPHA / len(ids)
        sinks[..., 0] = False
        others = torch.where(sinks, received, 0)[..., :-1].sum(-1)
        one = torch.stack([received[..., 0], received[..., -1], others, sinks.sum(-1)])
        expected.append(one.mean(-1))
    found = torch.tensor([[row[name] for row in rows] for name in ("first", "last", "other_sinks", "sinks")])
    assert [row["layer"] for row in rows] == [0, 1]
    assert found[2:].min() > 0
    torch.testing.assert_close(found, torch.stack(expected).mean(0), atol=1e-5, rtol=1e-5)


def test_sets_of_an_earlier_call_are_kept_with_the_same_settings_alone(tmp_path):
    assert benchmark.known_sets(tmp_path, {"alpha": 5.0}) == ([], 0.0)
    values = {"model": "m", "sets": [{"data": "trec"}]}
    Record(kind="encoder-calibration", values=values, config={"alpha": 5.0}, seconds=7.0).save(tmp_path, "minilm")
    assert benchmark.known_sets(tmp_path, {"alpha": 5.0}) == ([{"data": "trec"}], 7.0)
    with pytest.raises(InputError, match=r"minilm\.json is of other settings"):
        benchmark.known_sets(tmp_path, {"alpha": 4.0})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (["trec/test.txt", "subj/test.txt"], "--data names two sets alike: test, test; give their files"),
        (["trec/train.txt", "test.txt"], "minilm.json is of other settings; choose another folder"),
    ],
)
def test_input_that_cannot_be_used_ends_in_a_sentence(tmp_path, monkeypatch, capsys, data, message):
    """Two sets of one name would be one in the record."""
    Record(kind="encoder-calibration", values={"sets": []}).save(tmp_path, "minilm")
    monkeypatch.setattr(benchmark, "model_folder", lambda: tmp_path)
    for auto in (benchmark.AutoModel, benchmark.AutoTokenizer):
        monkeypatch.setattr(auto, "from_pretrained", lambda folder: torch.nn.Identity())
    named = [word for path in data for word in ("--data", path)]
    monkeypatch.setattr("sys.argv", ["encoder_calibration", *named, "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        benchmark.main()
    assert message in capsys.readouterr().err


def test_the_tables_of_the_page(monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "RECORDS", tmp_path)
    row = {"better": 3, "worse": 1, "p": 0.625, "interval": [-0.01, 0.03], "heads": [[0, 1]], "right": 52}
    rows = [{**row, "setting": "kept heads", "gain": 0.01}, {**row, "setting": "all heads", "gain": -0.02}]
    rows += [{**row, "setting": f"random heads {place}", "gain": gain} for place, gain in enumerate((0.0, 0.02))]
    sinks = [{"layer": 0, "first": 0.25, "last": 0.5, "other_sinks": 0.1, "sinks": 1.5}]
    found = {"data": "trec", "judged": 200, "plain": 100, "kept": [[0, 1]], "rows": rows, "sinks": sinks}
    found |= {"tokens": 20.4, "changed": 1}
    Record(kind="encoder-calibration", values={"model": "m", "sets": [found, found]}, config={"alpha": 5.0}).save(
        tmp_path, "minilm"
    )
    assert tables.encoder()[1] == [
        "trec", "20", "25 %", "1 of 1", "200", "50.0 %", "1 of 1", "+1.00 [-1.00, +3.00]", "3 / 1", "0.62",
        "+1.00, +0.00 to +2.00", "-2.00",
    ]  # fmt: skip
