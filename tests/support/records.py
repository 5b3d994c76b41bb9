"""What commands left in a folder."""

import json

from antiphase.base.records import CHECKSUM, _checksum

MEASURED = ("seconds", "tokens_per_second", "peak_memory", "peak_gpu_memory")
"""Values of a run that depend on the machine."""


def values(folder):
    """The values of the folder's record."""
    return json.loads((folder / "record.json").read_text())["values"]


def write_sealed(path, tree):
    """Write a record that was changed, with the digest that fits."""
    tree = {name: value for name, value in tree.items() if name != CHECKSUM}
    path.write_text(json.dumps({**tree, CHECKSUM: _checksum(tree)}), encoding="utf-8")


def without_times(tree):
    """The values, but for times and memory."""
    if isinstance(tree, dict):
        return {name: without_times(one) for name, one in tree.items() if name not in MEASURED}
    return [without_times(one) for one in tree] if isinstance(tree, list) else tree
