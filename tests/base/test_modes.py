"""Modes of a module: every part is restored by its own ``train``."""

import pytest
from torch import nn

from antiphase.base.modes import evaluation_mode


class Adapter(nn.Linear):
    """Merges its weights where it does not train, as some adapters do."""

    def __init__(self):
        super().__init__(1, 1)
        self.merged = False

    def train(self, mode=True):
        self.merged = not mode
        return super().train(mode)


def modes_of(model):
    return [(one.training, getattr(one, "merged", None)) for one in model.modules()]


@pytest.mark.parametrize("frozen", ["none", "adapter", "norm", "shared", "outermost"])
def test_parts_are_afterwards_as_they_were_and_evaluate_within(frozen):
    shared = Adapter()
    model = nn.ModuleDict({"adapter": Adapter(), "norm": nn.BatchNorm1d(1)})
    model["first"], model["second"] = nn.Sequential(shared), nn.Sequential(shared, nn.Dropout())
    if frozen in model:
        model[frozen].eval()
    elif frozen == "shared":
        model["first"].eval()  # and a part of the second with it
    elif frozen == "outermost":
        model.eval()
        model["adapter"].train()
    before = modes_of(model)
    for error in (None, ValueError):
        try:
            with evaluation_mode(model):
                assert not any(training for training, _ in modes_of(model))
                assert model["adapter"].merged
                if error is not None:
                    raise error
        except ValueError:
            assert error is ValueError
        assert [training for training, _ in modes_of(model)] == [training for training, _ in before]
        assert [merged for _, merged in modes_of(model["adapter"])] == [merged for _, merged in before[1:2]]
        assert shared.merged is not shared.training


class Unwilling(nn.Linear):
    def train(self, mode=True):
        if mode:
            raise RuntimeError("this part does not train")
        return super().train(mode)


def test_flags_are_restored_also_where_a_part_refuses():
    model = nn.Sequential(nn.Dropout(), Unwilling(1, 1), nn.Dropout())
    model[0].train(), model[2].train()
    with pytest.raises(RuntimeError, match="does not train"), evaluation_mode(model):
        pass
    assert [one.training for one in model.modules()] == [True] * 4
