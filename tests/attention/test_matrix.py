"""Every kind of model × everything that reads or changes attention: right, or refused by a sentence.

The oracle knows of each architecture which map reads which key and value, and nothing else of this package. It forms
whole maps in fp64 from the tensors that a layer hands over, and is itself held against what the layer's own function
returned. An identity leaves logits as they are; statistics are those of the oracle's maps.
"""

from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from scipy import stats
from torch import Tensor

import antiphase
from antiphase.attention.hooks import observed, transformed, wrapped_attention
from antiphase.attention.last_tokens import LastTokens
from antiphase.attention.maps import attention_maps
from antiphase.attention.rows import attention_rows
from antiphase.attention.statistics import attention_statistics
from antiphase.calibration.head_sensitivity import head_sensitivities
from antiphase.calibration.plan import CalibrationPlan
from antiphase.calibration.reference import redistribute
from antiphase.calibration.variants import varied
from antiphase.lab.measures.cancellation.measure import cancellation
from antiphase.lab.measures.outliers.measure import outliers
from antiphase.lab.measures.quantization.logits import quantized_logits
from antiphase.lab.scoring.allocation import allocation
from support.architectures import CASES, LAYERS, MAPS, N, batch, built

every_case = pytest.mark.parametrize("name", CASES)


def logits_of(model):
    with torch.no_grad():
        return model(input_ids=batch().input_ids).logits


def near(found, expected):
    """Logits but for rounding: λ and the norms of transformers are in fp32 whatever the model is in."""
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------ the oracle


@dataclass(frozen=True)
class Call:
    """One call of a layer's attention function, computed by hand."""

    layer: int
    weights: Tensor
    """(B, maps, N, N), in the model's own numbering."""
    scores: Tensor
    """The same before the softmax; 0 where hidden."""
    visible: Tensor
    """(N, N)."""
    lam: Tensor | None
    """(B, H, N)."""
    heads: Tensor
    """(B, N, heads, dv), what the function computes before any norm."""
    returned: Tensor
    """What it returns."""


def computed(case, layer, module, query, key, value, kwargs, change):
    maps, groups, number = query.shape[1], key.shape[1], torch.arange(query.shape[1])
    if case.form in ("V1", "inside"):
        value_head = number // (2 * maps // groups)
        key_of, values = 2 * value_head + number % 2, torch.cat([value[:, ::2], value[:, 1::2]], -1)[:, value_head]
    else:
        key_of = number // (maps // groups)
        values = value[:, key_of]
    scores = query @ key[:, key_of].transpose(-1, -2) * (kwargs.get("scaling") or query.shape[-1] ** -0.5)
    distance = torch.arange(N)[:, None] - torch.arange(N)
    visible = torch.ones(N, N, dtype=torch.bool) if case.is_encoder else distance >= 0
    if case.window[layer]:
        visible = visible & (distance.abs() < case.window[layer])
    masked = scores.masked_fill(~visible, -torch.inf)
    sinks = kwargs.get("s_aux")
    if sinks is not None:
        masked = torch.cat([masked, sinks[None, :, None, None].expand(*masked.shape[:3], 1)], -1)
    hidden = scores.masked_fill(~visible, 0.0)
    weights = change(layer, masked.softmax(-1)[..., :N], visible, hidden)
    heads, lam = (weights @ values).transpose(1, 2), None  # (B, N, maps, dv)
    if case.form != "softmax":
        lam = _lambda(case.form, module, kwargs).double()
        lam = lam.reshape((1,) * (3 - lam.dim()) + tuple(lam.shape)).expand(len(query), maps // 2, N)
    if case.form in ("V1", "V2", "inside"):
        heads = heads[:, :, ::2] - lam.transpose(1, 2).unsqueeze(-1) * heads[:, :, 1::2]
    returned = heads
    if case.form == "inside":  # (1 - λinit) · RMSNorm, and the halves of a head apart
        own = module.differential
        size = (heads.square().mean(-1, keepdim=True) + own.head_norm.eps).sqrt()
        returned = ((1 - own.lambda_init) * heads / size * own.head_norm.weight).unflatten(3, (2, -1)).flatten(2, 3)
    return Call(layer, weights, hidden, visible, lam, heads, returned)


def _lambda(form, module, kwargs):
    if form in ("V1", "V2"):
        return kwargs["lam"].detach()
    home = module.differential if form == "inside" else module
    q1, k1, q2, k2 = (getattr(home, f"lambda_{name}").detach().float() for name in ("q1", "k1", "q2", "k2"))
    return torch.exp((q1 * k1).sum()) - torch.exp((q2 * k2).sum()) + home.lambda_init


@contextmanager
def by_hand(model, case, change=None):
    """All attention within the block computed by hand; without a change, held against the model's own.

    ``change`` maps layer, weights (B, maps, N, N), which are visible (N, N), and scores to other weights.
    """
    calls = []
    form = change or (lambda layer, weights, visible, scores: weights)
    seen = []

    def wrap(function):
        def attend(module, query, key, value, mask, **kwargs):
            seen[:] = seen if seen and seen[-1] is query else [*seen, query]
            layer = (len(seen) - 1) % LAYERS
            call = computed(case, layer, module, query, key, value, kwargs, form)
            if change is None:
                own = function(module, query, key, value, mask, **kwargs)[0]
                torch.testing.assert_close(call.returned, own, rtol=1e-5, atol=1e-6)  # norms are in fp32
            calls.append(call)
            return call.returned.contiguous(), None  # JetMoE calls view

        return attend

    with wrapped_attention(model, wrap):
        yield calls


def layers_of(model, case):
    """The calls of one forward pass, the two of a DiffLlama layer made one, with heads' outputs subtracted."""
    with by_hand(model, case) as calls:
        logits_of(model)
    if case.form != "diffllama":
        assert len(calls) == LAYERS
        return calls
    found = []
    for one, two in zip(calls[::2], calls[1::2], strict=True):
        first, second = torch.cat([one.heads, two.heads], -1).chunk(2, dim=2)
        heads = first - one.lam.transpose(1, 2).unsqueeze(-1) * second
        found.append(replace(one, heads=heads))
    return found


def pairs(form, by_map):
    """(B, maps, ...) as (B, H, S, ...)."""
    if form == "softmax":
        return by_map.unsqueeze(2)
    return by_map.unflatten(1, (2, -1)).transpose(1, 2) if form == "diffllama" else by_map.unflatten(1, (-1, 2))


def signed(form, call):
    """(B, H, N, N): what multiplies the values."""
    maps = pairs(form, call.weights)
    return maps[:, :, 0] if form == "softmax" else maps[:, :, 0] - call.lam.unsqueeze(-1) * maps[:, :, 1]


# ------------------------------------------------------------------------------------------ identities


EVERY = {layer: list(range(MAPS)) for layer in range(LAYERS)}
SOME = {0: [1, 2], 1: [0, 5, 7]}


@contextmanager
def looked_at(model):
    with observed(model, lambda call, heads, weights: None):
        yield


def plan(heads=EVERY, **rule):
    return CalibrationPlan(heads, **{"alpha": 1e30, **rule})


IDENTITIES = {
    **{
        f"calibrated, {mode}, {what}": lambda model, mode=mode, heads=heads: antiphase.calibrated(
            model, plan(heads, mode=mode)
        )
        for mode in ("paper", "prompt", "running")
        for what, heads in (("every map", EVERY), ("some maps", SOME))
    },
    "calibrated with nothing to take": lambda model: antiphase.calibrated(model, plan(alpha=1e-3, beta=1.0)),
    "varied": lambda model: varied(model, plan(), "proportional"),
    "quantized": lambda model: quantized_logits(model, 40),
    "observed": looked_at,
    "transformed": lambda model: transformed(model, lambda call: call.own()[0]),
}
REFUSED_IDENTITY = {
    ("softmax with sink logits", "calibrated"): "does not support the arguments s_aux",
    ("softmax with sink logits", "varied"): "does not support the arguments s_aux",
    ("softmax with sink logits", "quantized"): "does not support the arguments s_aux",
    **{
        (name, "calibrated, running"): 'mode "running" needs causal attention'
        for name, case in CASES.items() if case.is_encoder
    },
}  # fmt: skip


@pytest.mark.grid
@pytest.mark.parametrize("identity", IDENTITIES)
@every_case
def test_identity_settings_change_nothing(name, identity):
    model = built(name)
    plain = logits_of(model)
    refusals = [why for (model_name, start), why in REFUSED_IDENTITY.items()
                if model_name == name and identity.startswith(start)]  # fmt: skip
    if refusals:
        with pytest.raises(ValueError, match=refusals[0]), IDENTITIES[identity](model):
            logits_of(model)
    else:
        with IDENTITIES[identity](model):
            near(logits_of(model), plain)
            with looked_at(model):
                near(logits_of(model), plain)
    assert torch.equal(logits_of(model), plain)


@every_case
def test_heads_of_a_layer_are_changed_before_what_follows_them(name):
    """A transform that doubles every head's output does what a hook on the values would do."""
    model = built(name)
    plain = logits_of(model)
    with transformed(model, lambda call: 2 * call.own()[0]):
        found = logits_of(model)

    def wrap(function):
        def doubled(module, query, key, value, mask, **kwargs):
            return function(module, query, key, 2 * value, mask, **kwargs)

        return doubled

    with wrapped_attention(model, wrap):
        near(found, logits_of(model))
    assert not torch.allclose(found, plain)


# ------------------------------------------------------------------------------------------ calibration


ALPHA, BETA = 1.3, 0.2


def calibrate(weights, visible, beta=BETA):
    """The rule on maps (B, N, N) of a whole text without padding."""
    received = weights.sum(-2) / visible.sum(0)
    sinks = received > ALPHA / int(visible.sum(-1).max())
    sinks[:, 0] = False
    return redistribute(weights, sinks.unsqueeze(-2), beta=beta)


def score(model, samples):
    """Log-probability of the last token."""
    ids = torch.stack(list(samples))
    return model(input_ids=ids).logits[:, -2].log_softmax(-1).gather(1, ids[:, -1:])[:, 0]


without_sinks = pytest.mark.parametrize("name", [name for name in CASES if name != "softmax with sink logits"])


@without_sinks
def test_calibration_is_the_rule_on_maps_made_by_hand(name):
    model = built(name)

    def change(layer, weights, visible, scores):
        new = [calibrate(one, visible) if head in SOME[layer] else one for head, one in enumerate(weights.unbind(1))]
        return torch.stack(new, dim=1)

    with antiphase.calibrated(model, plan(SOME, alpha=ALPHA, beta=BETA, mode="paper")):
        found = logits_of(model)
    with by_hand(model, CASES[name], change):
        near(found, logits_of(model))
    assert (found - logits_of(model)).abs().max() > 1e-3


@without_sinks
def test_slopes_are_those_of_maps_moved_by_hand(name):
    model, ids, step = built(name), list(batch().input_ids), 1e-2
    slopes = head_sensitivities(model, plan(alpha=ALPHA, beta=BETA, mode="paper"), score, ids)

    def moved(layer, weights, visible, scores, *, by):
        new = [*weights.unbind(1)]
        if layer == 1:
            new[2] = new[2] + by * (calibrate(new[2], visible) - new[2])
        return torch.stack(new, dim=1)

    found = []
    for by in (step, -step):
        with torch.no_grad(), by_hand(model, CASES[name], partial(moved, by=by)):
            found.append(float(score(model, ids).mean()))
    assert (found[0] - found[1]) / (2 * step) == pytest.approx(slopes[1, 2], rel=5e-3, abs=1e-6)
    assert slopes[1, 2] != 0


@pytest.mark.parametrize(("granularity", "shared"), [("tensor", (1, 2, 3)), ("head", (2, 3)), ("row", (3,))])
@without_sinks
def test_quantization_rounds_scores_before_the_softmax(name, granularity, shared):
    model = built(name)

    def change(layer, weights, visible, scores):
        step = scores.abs().amax(shared, keepdim=True) / 7  # 4 bits
        return ((scores / step).nan_to_num().round() * step).masked_fill(~visible, -torch.inf).softmax(-1)

    with quantized_logits(model, 4, granularity=granularity):
        found = logits_of(model)
    with by_hand(model, CASES[name], change):
        near(found, logits_of(model))
    assert (found - logits_of(model)).abs().max() > 1e-3


# ------------------------------------------------------------------------------------------ statistics


@every_case
def test_statistics_and_rows_are_those_of_the_maps(name):
    model, case, ids = built(name), CASES[name], batch().input_ids
    layers = layers_of(model, case)
    span = torch.zeros_like(ids, dtype=torch.bool)
    span[:, 5:9] = True
    found = attention_statistics(model, {"some": span}, alpha=2.0, top=3, input_ids=ids)
    for number, layer in enumerate(layers):
        maps = layer.weights
        seen = layer.visible.sum(0)
        close(found.received[number], maps.sum(-2) / seen)
        close(found.span_share["some"][number], maps[..., 5:9].sum(-1).mean(-1))
        close(found.entropy[number], torch.special.entr(maps).sum(-1).mean(-1))
        close(found.top_logits[number], layer.scores.abs().flatten(2).topk(3).values)
        if case.form == "softmax":
            assert found.differences is None
            continue
        whole = signed(case.form, layer)
        shares = whole.abs() / whole.abs().sum(-1, keepdim=True)
        close(found.differences.span_share["some"][number], whole[..., 5:9].sum(-1).mean(-1))
        close(found.differences.span_share_absolute["some"][number], shares[..., 5:9].sum(-1).mean(-1))
        close(found.differences.entropy[number], torch.special.entr(shares).sum(-1).mean(-1))
        close(found.differences.negative_share[number], (shares * (whole < 0)).sum(-1).mean(-1))
    positions = torch.tensor([[3, 11], [0, N - 1]])
    for row, layer in zip(attention_rows(model, ids, positions), layers, strict=True):
        expected = torch.stack([pairs(case.form, layer.weights)[b][:, :, positions[b]] for b in range(2)])
        close(row.maps, expected)
        close(row.weights(), torch.stack([signed(case.form, layer)[b][:, positions[b]] for b in range(2)]))
    for one, layer in zip(attention_maps(model, ids[:1]), layers, strict=True):
        close(one.maps.double(), pairs(case.form, layer.weights)[0])
        close(one.weights().double(), signed(case.form, layer)[0])


def close(found, expected):
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-6)


@every_case
def test_figures_that_are_made_of_rows(name):
    """Allocation of the prompt's last token, and sizes of heads' outputs beside those of their values."""
    model, case, given = built(name), CASES[name], batch()
    layers = layers_of(model, case)
    ends = given.prompt_end
    for row in allocation(model, given)[:LAYERS]:
        if row["map"] not in ("softmax", "difference"):
            continue
        weights = signed(case.form, layers[row["layer"]])
        answer = torch.stack([weights[b, :, ends[b]] @ given.spans["answer"][b].double() for b in range(2)])
        assert row["spans"]["answer"]["signed"] == pytest.approx(answer.mean().item(), rel=1e-5)
    found = cancellation(model, given)
    for layer, call in enumerate(layers):
        own = [row.output_rms for row in found.heads if row.layer == layer]
        sizes = call.heads.square().mean((1, 3)).sqrt().mean(0)
        assert own[: len(sizes)] == pytest.approx(sizes.tolist(), rel=1e-5)
    if name == "esm":
        with pytest.raises(ValueError, match="has no list of numbered layers"):
            outliers(model, given.input_ids)
    elif name != "softmax with sink logits":
        found = [row for row in outliers(model, given.input_ids).rows if row.what == "attention logits"]
        logits = [call.scores[call.visible.expand_as(call.scores)] for call in layers]
        for row, scores in zip(found, [torch.cat(logits), *logits], strict=True):
            sizes = scores.abs().sort(descending=True).values
            assert row.top == pytest.approx({place: sizes[int(place) - 1].item() for place in row.top}, rel=1e-5)
            assert row.median == pytest.approx(sizes.median().item(), rel=0.02)
            if row.layer != "all":
                assert row.kurtosis == pytest.approx(stats.kurtosis(scores, fisher=False), rel=1e-4)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.is_encoder])
def test_last_tokens_run_again_and_their_parts_add_up(name):
    model, ids = built(name), batch().input_ids
    positions = torch.tensor([[N - 3, N - 2], [7, N - 2]])
    targets = ids.gather(1, positions + 1)
    if name == "decoder of BART":
        with pytest.raises(ValueError, match="BartForCausalLM takes no position_ids"):
            LastTokens(model, ids, positions).log_probabilities(targets)
        return
    last = LastTokens(model, ids, positions)
    logs = logits_of(model).log_softmax(-1)
    expected = torch.stack([logs[b, positions[b], targets[b]].sum() for b in range(2)])
    close(last.log_probabilities(targets), expected)
    spans = torch.stack([torch.arange(N).expand(2, -1) % 3 == part for part in range(3)], dim=1)
    for contribution in last.contributions(spans):
        close(contribution.shares().sum(1), torch.ones(2))
