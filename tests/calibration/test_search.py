"""The search finds heads in which sinks were planted, by every method, and judges its choice on samples kept apart."""

import copy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    GPT2Config,
    GPTNeoXConfig,
    JambaConfig,
    LagunaConfig,
    LlamaConfig,
)

import antiphase
from antiphase.base.errors import InputError
from antiphase.calibration import CalibrationPlan, calibrated, search
from antiphase.calibration.head_sensitivity import head_sensitivities
from antiphase.calibration.lower_layers import LowerLayerCache
from antiphase.calibration.search import scores_of, search_calibration, slopes_of, split_samples  # fmt: skip

LAYERS, MAPS, WIDTH, N = 3, 4, 8, 32
PLANTED = {(0, 1), (2, 3)}
SINK = 7


def build():
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=50, hidden_size=MAPS * WIDTH, num_hidden_layers=LAYERS, num_attention_heads=MAPS,
        num_key_value_heads=MAPS, intermediate_size=40, max_position_embeddings=64, initializer_range=0.15,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).double().eval()


def samples(count=16):
    ids = torch.randint(8, 50, (count, N), generator=torch.Generator().manual_seed(2))
    ids[:, 4::9] = SINK  # a meaningless token, here and there
    return list(ids)


def plant(model, strength=2.5):
    """Queries of the planted heads look at the sink token: its keys and all queries share a direction."""
    model = copy.deepcopy(model)
    seen = {}
    model.model.embed_tokens.register_forward_pre_hook(lambda module, args: seen.update(ids=args[0]))
    for layer, head in PLANTED:
        last = (head + 1) * WIDTH - 1  # a channel that the rotation hardly turns
        attention = model.model.layers[layer].self_attn

        def add_to_keys(module, args, out, last=last):
            out = out.clone()
            out[..., last] += strength * 2.0 * (seen["ids"] == SINK)
            return out

        def add_to_queries(module, args, out, last=last):
            out = out.clone()
            out[..., last] += strength * 2.0
            return out

        attention.k_proj.register_forward_hook(add_to_keys)
        attention.q_proj.register_forward_hook(add_to_queries)
    return model


@pytest.fixture(scope="module")
def model_and_score():
    clean = build()

    def score(model, given):
        """Minus the distance from what the clean model says: a score whose best value is known."""
        ids = torch.stack(list(given))
        with torch.no_grad():
            wanted = clean(ids).logits
        return -(model(ids).logits - wanted).square().mean((1, 2))

    return plant(clean), score


@pytest.mark.parametrize("method", ["exhaustive", "cached"])
def test_planted_heads_are_found_and_the_gain_holds_on_other_samples(model_and_score, method):
    model, score = model_and_score
    plan = search_calibration(model, score, samples(48), alpha=3.0, beta=0.05, mode="prompt", method=method)
    changes = {name: found["change"] for name, found in plan.scores["heads"].items()}
    best = sorted(changes, key=lambda name: -changes[name])[: len(PLANTED)]
    assert {tuple(map(int, name.split("."))) for name in best} == PLANTED
    assert len(changes) == LAYERS * MAPS
    assert plan.heads.keys() >= {layer for layer, _ in PLANTED}
    low, high = plan.scores["held_out_gain_interval"]
    assert 0 < low < plan.scores["held_out_gain"] < high
    with calibrated(model, plan):  # the fingerprint fits
        pass


def test_a_model_in_training_is_searched_without_dropout(model_and_score):
    model, score = model_and_score
    expected = search_calibration(model, score, samples(), layers=[0, 1])
    model = copy.deepcopy(model).train()
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda mlp, _, out: torch.nn.functional.dropout(out, 0.5, mlp.training))
    found = search_calibration(model, lambda *given: score(*given).tolist(), samples(), layers=[0, 1])
    assert found.scores == expected.scores
    assert model.training
    with pytest.raises(ValueError, match=r"one number per sample, 8, got shape \(\)"):
        search_calibration(model, lambda *given: 1.0, samples())


def test_methods_agree(model_and_score):
    model, score = model_and_score
    plans = {
        method: search_calibration(model, score, samples(), alpha=3.0, beta=0.05, method=method)
        for method in ("exhaustive", "cached")
    }
    one, other = (plan.scores["heads"] for plan in plans.values())
    assert one.keys() == other.keys()
    for name in one:
        assert one[name]["change"] == pytest.approx(other[name]["change"], rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("mode", ["paper", "prompt", "running"])
@pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2"])
def test_slopes_are_derivatives_in_every_mode_and_of_each_map_before_the_subtraction(kind, mode):
    """Of a score that reads a prompt, and then some tokens behind it with its cache."""
    torch.manual_seed(3)
    config = antiphase.AntiphaseConfig(
        vocab_size=50, hidden_size=MAPS * WIDTH, num_hidden_layers=2, num_attention_heads=MAPS,
        intermediate_size=40, max_position_embeddings=64, initializer_range=0.3, attention_type=kind,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).double().eval()
    given = samples(4)

    def score(model, given):
        ids, cache = torch.stack(list(given)), DynamicCache(config=model.config)
        model(ids[:, :-3], past_key_values=cache)
        steps = [model(one, past_key_values=cache).logits[:, 0] for one in ids[:, -3:].split(1, 1)]
        return torch.stack(steps, 1).log_softmax(-1)[:, :, SINK].sum(1)

    beta, step = 0.3, 1e-4
    every = CalibrationPlan({layer: range(MAPS) for layer in range(2)}, alpha=1.5, beta=beta, mode=mode)
    slopes = head_sensitivities(model, every, score, given)
    base = scores_of(model, score, {"s": given})["s"].mean()
    for (layer, head), slope in slopes.items():
        little = CalibrationPlan({layer: [head]}, alpha=1.5, beta=1 - step * (1 - beta), mode=mode)
        with calibrated(model, little):
            moved = scores_of(model, score, {"s": given})["s"].mean()
        assert slope == pytest.approx(float(moved - base) / step, rel=5e-3, abs=1e-4)
    assert sum(abs(slope) > 0.02 for slope in slopes.values()) > MAPS


def test_slopes_of_many_samples_are_the_mean_over_data_sets_of_their_means(model_and_score, monkeypatch):
    model, score = model_and_score
    every = CalibrationPlan({layer: range(MAPS) for layer in range(LAYERS)}, alpha=3.0, beta=0.05)
    named = {"long": samples(7), "short": samples(12)[9:]}
    alone = [head_sensitivities(model, every, score, given) for given in named.values()]
    monkeypatch.setattr(search, "SCREENED_AT_ONCE", 3)
    for head, slope in slopes_of(model, every, score, named).items():
        assert slope == pytest.approx(sum(slopes[head] for slopes in alone) / 2, rel=1e-6)


def test_the_screen_tries_no_more_than_a_fifth(model_and_score):
    model, score = model_and_score
    tried = []
    plan = search_calibration(
        model, score, samples(), alpha=3.0, beta=0.05, method="screen",
        report=lambda result, count: tried.append(result),
    )  # fmt: skip
    assert 1 <= len(tried) <= max(1, LAYERS * MAPS // 5)
    assert {(found.layer, found.head) for found in tried} <= PLANTED
    assert len(plan.scores["slopes"]) == LAYERS * MAPS


@torch.no_grad()
@pytest.mark.parametrize("most_bytes", [None, 0, 1, 2**14])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox"])
def test_lower_layers_are_kept_with_a_cache_too(kind, most_bytes):
    """Two batches, each with a prompt and what follows it; where memory ends, the later one goes through all layers."""
    model = build() if kind == "llama" else AutoModelForCausalLM.from_config({
        "gpt2": GPT2Config(vocab_size=50, n_embd=32, n_layer=LAYERS, n_head=MAPS, n_positions=64),
        "gpt_neox": GPTNeoXConfig(  # whose layers have another name for the cache
            vocab_size=50, hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=MAPS, intermediate_size=40,
            max_position_embeddings=64,
        ),
    }[kind]).double().eval()  # fmt: skip
    batches = torch.stack(samples(6)).split(3)

    def work():
        found = []
        for ids in batches:
            cache = DynamicCache(config=model.config)
            first = model(ids[:, :20], past_key_values=cache).logits
            found.append(torch.cat([first, model(ids[:, 20:], past_key_values=cache).logits], 1))
        return torch.stack(found)

    expected = work()
    ran = []
    for index, layer in enumerate(LowerLayerCache(model).layers):
        part = getattr(layer, {"llama": "self_attn", "gpt2": "attn", "gpt_neox": "attention"}[kind])
        part.register_forward_hook(lambda *args, index=index: ran.append(index))
    lower = LowerLayerCache(model) if most_bytes is None else LowerLayerCache(model, most_bytes=most_bytes)
    stored = {None: 4, 0: 0, 1: 2, 2**14: 2}[most_bytes]  # passes; a batch that is begun is stored to its end
    whole = list(range(LAYERS))
    for start in range(1, LAYERS):
        ran.clear()
        with lower.record(start):
            work()
        before = start - 1  # where the last one stopped
        assert ran == [*range(before, start)] * stored + [*range(start)] * (4 - stored)
        ran.clear()
        with lower.skipped():
            torch.testing.assert_close(work(), expected)
        assert ran == whole[start:] * stored + whole * (4 - stored)
    torch.testing.assert_close(work(), expected)


@torch.no_grad()
def test_lower_layers_refuse_work_that_changes():
    model = build()
    ids = torch.stack(samples(2))
    lower = LowerLayerCache(model)
    with lower.record(1):
        model(ids)
    with pytest.raises(ValueError, match="depend on the model's answers"), lower.skipped():
        model(ids - 1)
    assert "forward" not in model.model.layers[0].__dict__


@torch.no_grad()
def test_a_forward_function_that_somebody_set_on_a_layer_stays():
    """As accelerate does, to move a layer's inputs to its device."""
    model = build()
    ids, layer, calls = torch.stack(samples(2)), model.model.layers[0], []
    own = layer.forward
    layer.forward = kept = lambda *args, **kwargs: calls.append(1) or own(*args, **kwargs)
    lower = LowerLayerCache(model)
    with lower.record(1):
        model(ids)
    with lower.skipped():
        model(ids)
    assert layer.__dict__["forward"] is kept
    assert calls == [1]


def test_known_results_are_not_measured_again(model_and_score):
    model, score = model_and_score
    seen = []
    full = search_calibration(model, score, samples(), alpha=3.0, beta=0.05, report=lambda r, count: seen.append(r))
    later = []
    again = search_calibration(
        model, score, samples(), alpha=3.0, beta=0.05, known=seen[:7], report=lambda r, count: later.append(r)
    )
    assert later == seen[7:]
    assert again.heads == full.heads
    assert again.scores["heads"] == full.scores["heads"]


def test_layers_can_be_chosen(model_and_score):
    model, score = model_and_score
    seen = []
    search_calibration(model, score, samples(4), layers=[1], report=lambda r, count: seen.append((r.layer, count)))
    assert seen == [(1, MAPS)] * MAPS
    with pytest.raises(InputError, match="layer 3"):
        search_calibration(model, score, samples(4), layers=[3])


@pytest.mark.parametrize("number", range(8))
def test_a_score_that_is_not_a_number_stops_with_its_sample(model_and_score, number):
    """By its place in the data set, whichever part it fell into."""
    model, _ = model_and_score
    given = samples(8)

    def score(model, some):
        return torch.tensor([float("nan") if torch.equal(sample, given[number]) else 0.0 for sample in some])

    with pytest.raises(ValueError, match=f"sample {number} of trec .from 0. is nan"):
        search_calibration(model, score, {"trec": given})
    with pytest.raises(ValueError, match="one number per sample"):
        search_calibration(model, lambda model, some: torch.zeros(1), given)


def test_a_score_without_gradient_cannot_be_screened(model_and_score):
    model, score = model_and_score
    with pytest.raises(ValueError, match="a differentiable score"):
        search_calibration(model, lambda m, given: score(m, given).detach(), samples(8), method="screen")
    plan = search_calibration(
        model, lambda m, given: score(m, given).detach(), samples(8), method="screen", surrogate=score, alpha=3.0
    )
    assert plan.scores["method"] == "screen"


def test_parts_do_not_overlap_and_depend_on_the_seed():
    given = {"a": list(range(20)), "b": list(range(100, 109))}
    one, other = (split_samples(given, held_out=0.5, seed=seed) for seed in (0, 1))
    for part in (one, other):
        for name, whole in given.items():
            assert sorted(part.search[name] + part.held_out[name]) == whole
    assert one.search != other.search
    assert one == split_samples(given, held_out=0.5, seed=0)
    with pytest.raises(InputError, match="at least two"):
        split_samples({"a": [1]}, held_out=0.5, seed=0)


def test_copies_of_samples_that_choose_and_of_each_other_are_not_held_out():
    given = {"a": [*range(20), *range(20)], "b": [*range(15, 40)]}
    plain = split_samples(given, held_out=0.5, seed=0)
    found = split_samples(given, held_out=0.5, seed=0, key=lambda number: number)
    assert found.search_numbers == plain.search_numbers
    chosen = {number for some in found.search.values() for number in some}
    for name, numbers in plain.held_out_numbers.items():
        first: dict[int, int] = {}
        for i in numbers:
            first.setdefault(given[name][i], i)
        assert found.held_out_numbers[name] == [i for number, i in first.items() if number not in chosen]
        assert found.held_out[name] == [given[name][i] for i in found.held_out_numbers[name]]
        assert found.left_out[name] == len(numbers) - len(found.held_out[name]) > 0
        assert plain.left_out[name] == 0
    with pytest.raises(InputError, match="data set a has no sample to evaluate by that is no copy"):
        split_samples({"a": [1] * 9}, held_out=0.5, seed=0, key=lambda number: number)


def test_a_choice_is_not_evaluated_on_copies(model_and_score):
    model, score = model_and_score
    seen = []
    given = samples(8) * 2
    plan = search_calibration(
        model, lambda m, some: (seen.append(some), score(m, some))[1], given, alpha=3.0,
        key=lambda sample: tuple(sample.tolist()),
    )  # fmt: skip
    chosen = {tuple(given[i].tolist()) for i in plan.scores["search_samples"]["samples"]}
    judges = [tuple(sample.tolist()) for sample in seen[-1]]
    assert plan.scores["left_out"]["samples"] == 8 - len(judges) > 0
    assert not chosen & set(judges)


def test_heads_without_a_sink_tie(model_and_score):
    """Their output is formed in another order, and rounding alone must keep no head."""
    model, _ = model_and_score
    model = copy.deepcopy(model).to(torch.bfloat16)

    def score(model, given):
        return model(torch.stack(list(given))).logits[:, -1].float().log_softmax(-1)[:, 9]

    plan = search_calibration(model, score, samples(), alpha=500.0, held_out=0.5)
    assert plan.heads == {}
    assert {row["change"] for row in plan.scores["heads"].values()} == {0.0}


def test_every_head_is_tried_where_layers_have_different_numbers():
    torch.manual_seed(0)
    config = LagunaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_attention_heads_per_layer=[4, 8, 2], num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
        num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16, shared_expert_intermediate_size=16,
        sliding_window=16, layer_types=["full_attention", "sliding_attention", "sliding_attention"],
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()

    def score(model, given):
        with torch.no_grad():
            return model(torch.stack(list(given))).logits.log_softmax(-1)[:, -1, 7]

    for method in ("exhaustive", "screen"):
        surrogate = {"surrogate": lambda model, given: model(torch.stack(list(given))).logits[:, -1, 7]}
        plan = search_calibration(model, score, samples(), alpha=1.5, method=method, **surrogate)
        if method == "exhaustive":
            heads = {(layer, head) for layer, count in enumerate((4, 8, 2)) for head in range(count)}
            assert set(plan.scores["heads"]) == {f"{layer}.{head}" for layer, head in heads}
        assert plan.scores["exhaustive_evaluations"] == 14
    CalibrationPlan({1: [7]}).check(model)
    with pytest.raises(InputError, match="head 8 of layer 1, but heads are 0 to 7"):
        CalibrationPlan({1: [8]}).check(model)
    with pytest.raises(InputError, match="head 4 of layer 2, but heads are 0 to 1"):
        CalibrationPlan({2: [4]}).check(model)


def test_a_layer_without_attention_is_refused_by_every_method():
    config = JambaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=0, num_experts=1, use_mamba_kernels=False,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()

    def score(model, given):
        return model(torch.stack(list(given))).logits.log_softmax(-1)[:, -1, 7]

    for method in ("exhaustive", "screen"):
        with pytest.raises(InputError, match="layer 1"):
            search_calibration(model, score, samples(), layers=[1], method=method)
