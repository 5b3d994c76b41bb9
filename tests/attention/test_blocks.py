"""Blocks around a model that is compiled, runs in several threads, or has other blocks around it."""

import copy
import pickle
import threading

import pytest
import torch
from transformers import AttentionInterface

import antiphase
from antiphase.attention.hooks import observed
from antiphase.attention.interface import REPLACEMENT_PREFIX
from antiphase.attention.maps import attention_maps
from antiphase.calibration.plan import CalibrationPlan
from support.architectures import batch, built

PLAN = CalibrationPlan({0: [1, 2], 1: [0]}, 1.3, 0.2, "prompt")


@torch.no_grad()
def calibrated_logits(model, ids, plan=PLAN):
    with antiphase.calibrated(model, plan):
        return model(input_ids=ids).logits


def replacements():
    return [name for name in AttentionInterface._global_mapping if name.startswith(REPLACEMENT_PREFIX)]


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("compiled_with", ["torch.compile", "model.compile"])
@pytest.mark.parametrize("name", ["llama", "V1"])
def test_a_compiled_model_is_calibrated_and_as_before_afterwards(name, compiled_with):
    model, ids = built(name), batch().input_ids
    plain, expected = model(input_ids=ids).logits, calibrated_logits(model, ids)
    assert (expected - plain).abs().max() > 1e-3
    if compiled_with == "torch.compile":
        model = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
    for _ in range(2):
        torch.testing.assert_close(model(input_ids=ids).logits, plain)
        torch.testing.assert_close(calibrated_logits(model, ids), expected)


def test_threads_that_run_one_calibrated_model_at_the_same_time_get_their_own_results():
    model, ids = built("llama"), batch().input_ids
    texts = [ids, ids[:, :11]]
    expected, found = [calibrated_logits(model, text) for text in texts], [None, None]
    together = threading.Barrier(2, timeout=60)

    def meet(*_):
        together.wait()

    def run(index):
        with torch.no_grad():
            found[index] = model(input_ids=texts[index]).logits

    model.model.layers[0].register_forward_hook(meet)
    with antiphase.calibrated(model, PLAN):
        threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    torch.testing.assert_close(found, expected)


def test_an_observer_sees_no_calls_of_other_threads():
    model, ids = built("llama"), batch().input_ids
    expected = antiphase.attention_statistics(model, input_ids=ids)

    def meet(*_):
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=torch.no_grad()(lambda: model(input_ids=ids.flip(1))))
            other.start()
            other.join()

    model.model.layers[0].register_forward_hook(meet)
    found = antiphase.attention_statistics(model, input_ids=ids)
    assert found.layers == expected.layers
    torch.testing.assert_close(found.received, expected.received, rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "V1"])
def test_another_model_with_the_same_configuration_object_is_left_alone(name):
    model, ids = built(name), batch().input_ids
    torch.manual_seed(7)
    other = type(model)(model.config).eval()
    other.load_state_dict({key: 1.1 * value for key, value in model.state_dict().items()})
    plain, expected = other(input_ids=ids).logits, calibrated_logits(model, ids)
    own = calibrated_logits(other, ids)
    with antiphase.calibrated(model, PLAN):
        torch.testing.assert_close(other(input_ids=ids).logits, plain, rtol=0, atol=0)
        torch.testing.assert_close(calibrated_logits(other, ids), own)
        torch.testing.assert_close(model(input_ids=ids).logits, expected)


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "V1"])
def test_blocks_around_a_block_of_a_model_that_shares_the_configuration_object_still_nest(name):
    model, ids = built(name), batch().input_ids
    other = type(model)(model.config).eval()

    def seen(calls):
        return observed(model, lambda call, *_: calls.append(call.layer))

    with antiphase.calibrated(model, PLAN):
        expected = antiphase.attention_statistics(model, input_ids=ids)
        with antiphase.calibrated(other, PLAN):
            found = antiphase.attention_statistics(model, input_ids=ids)
    torch.testing.assert_close(found.received, expected.received, rtol=0, atol=0)
    outer, inner = [], []
    with seen(outer), antiphase.calibrated(other, PLAN), seen(inner):
        model(input_ids=ids)
    assert outer == inner == list(range(model.config.num_hidden_layers))
    outer.clear()
    with seen(outer), antiphase.calibrated(other, PLAN), antiphase.calibrated(model, PLAN):
        model(input_ids=ids)
    assert outer == inner


def test_dropout_of_weights_is_refused_with_what_to_do():
    model = built("llama").train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    with pytest.raises(ValueError, match=r"no dropout on its weights; call model.eval\(\)"):
        calibrated_logits(model, batch().input_ids)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_copy_within_a_block_is_refused(copied):
    model = built("llama")
    with antiphase.calibrated(model, PLAN), pytest.raises(TypeError, match="cannot be copied while its attention is"):
        copied(model)
    copied(model)


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "V1", "differential_llama"])
def test_blocks_that_end_in_the_wrong_order_are_refused_and_leave_the_model_as_it_was(name):
    model, ids = built(name), batch().input_ids
    plain = model(input_ids=ids).logits
    first, second = (antiphase.calibrated(model, CalibrationPlan({layer: [0]}, 1.3, 0.2)) for layer in (0, 1))
    first.__enter__()
    second.__enter__()
    for block in (first, second):
        with pytest.raises(ValueError, match="must end in the opposite order"):
            block.__exit__(None, None, None)
    torch.testing.assert_close(model(input_ids=ids).logits, plain, rtol=0, atol=0)
    assert not replacements()


def test_complete_maps_of_changed_attention_are_refused():
    model, ids = built("llama"), batch().input_ids
    with antiphase.calibrated(model, PLAN), pytest.raises(ValueError, match="read them outside the block"):
        attention_maps(model, ids[:1])
