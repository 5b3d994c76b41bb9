"""A sample of the zoo with the fast tests; ``run.py`` runs all of it."""

import pytest

from zoo.cells import row
from zoo.run import RIGHT

SAMPLE = {
    "causal": ["llama", "gpt2", "gpt_oss", "gemma2", "bloom", "mamba", "qwen3_moe", "codegen", "doge", "xlnet"],
    "encoder": ["bert", "modernbert"],
    "encoder-decoder": ["bart", "pegasus_x", "t5"],
}


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, names in SAMPLE.items() for name in names])
def test_every_cell_is_equal_or_refused_by_name(family, name):
    for cell, by_dtype in row(family, name)["cells"].items():
        for dtype, found in by_dtype.items():
            assert found["state"] in RIGHT, (cell, dtype, found)
