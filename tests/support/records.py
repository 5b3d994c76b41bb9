"""What commands left in a folder."""

import json


def values(folder):
    """The values of the folder's record."""
    return json.loads((folder / "record.json").read_text())["values"]


def without_times(tree):
    """The values, but for what a clock measured."""
    if isinstance(tree, dict):
        return {name: without_times(one) for name, one in tree.items() if name not in ("seconds", "tokens_per_second")}
    return [without_times(one) for one in tree] if isinstance(tree, list) else tree
