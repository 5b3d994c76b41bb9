"""Presets in files."""

import pytest
import yaml

from support.presets import REQUIRED


@pytest.fixture
def preset(tmp_path):
    """Write a preset from a tree of changes to the smallest one and return its path."""

    def write(**sections):
        path = tmp_path / "preset.yaml"
        tree = {**REQUIRED, **sections}
        path.write_text(yaml.safe_dump({key: value for key, value in tree.items() if value is not None}))
        return str(path)

    return write
