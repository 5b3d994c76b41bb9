"""The longest text that a classifier is given is the longest that it reads, wherever its positions begin."""

import pytest
import transformers as hf

from antiphase.base.errors import InputError
from antiphase.lab.lineage.data.text_batches import EncodedTexts
from antiphase.lab.lineage.finished_runs import check_lengths
from antiphase.lab.lineage.scoring.classification import class_probabilities

SIZES = {
    "vocab_size": 19, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 21, "pad_token_id": 1,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "reads"), [("Bert", 21), ("Roberta", 19), ("MPNet", 19), ("XLMRoberta", 19)])
def test_a_text_is_refused_where_the_model_would_fail(kind, reads):
    model = getattr(hf, f"{kind}ForSequenceClassification")(getattr(hf, f"{kind}Config")(**SIZES)).eval()
    fits, too_long = (EncodedTexts([[5] * 3, [5] * length], pad_id=1) for length in (reads, reads + 1))
    check_lengths(fits, ["a", "b"], model, remedy="shorten it")
    assert class_probabilities(model, fits).shape == (2, 2)
    with pytest.raises(InputError, match=f"b: the text has {reads + 1} tokens, more than the {reads} positions"):
        check_lengths(too_long, ["a", "b"], model, remedy="shorten it")
    with pytest.raises((IndexError, RuntimeError)):
        class_probabilities(model, too_long)
