"""A sample of the zoo with the fast tests; ``run.py`` runs all of it."""

import pytest
import torch

from zoo.cells import CELLS, Subject, judged, names_model

SAMPLE = {
    "causal": ["llama", "gpt2", "gpt_oss", "mamba", "qwen3_moe", "gemma2", "bloom"],
    "encoder": ["bert", "modernbert"],
    "encoder-decoder": ["bart", "pegasus_x", "t5"],
}


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, names in SAMPLE.items() for name in names])
def test_every_cell_is_equal_or_refused_by_name(family, name):
    of = Subject(family, name, torch.float32)
    for cell in CELLS[family]:
        row = judged(of, cell)
        assert row["state"] in ("equal", "refused"), (cell.__name__, row)
        assert row["state"] == "equal" or names_model(of, row["why"]), row
