"""Tests of generation, heads, packed batches and export, which stock models pass too.

They stand in for transformers' ``GenerationTesterMixin``, ``CausalLMModelTest`` and ``ExportTesterMixin``, which its
source distribution leaves out.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers as hf
from transformers import DataCollatorWithFlattening, PreTrainedModel

GREEDY = {"do_sample": False, "min_new_tokens": 5, "max_new_tokens": 5, "pad_token_id": 0}
NEAR = {"rtol": 1e-4, "atol": 1e-4}


class GenerationTests:
    """What ``generate`` must do for every model that has it."""

    model_tester: Any
    all_generative_model_classes: tuple[type[PreTrainedModel], ...]
    all_model_classes: tuple[type[PreTrainedModel], ...]

    def _models(self) -> list[tuple[PreTrainedModel, dict[str, torch.Tensor]]]:
        """Models that generate, with the inputs of their prompt; none has padding."""
        if not self.all_generative_model_classes:
            pytest.skip("the model does not generate")
        found = []
        for kind in self.all_generative_model_classes:
            config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
            model = kind(config).eval()
            inputs = {name: inputs[name] for name in ("input_ids",)}
            found.append((model, inputs | {"attention_mask": torch.ones_like(inputs["input_ids"])}))
        return found

    def _decoders(self) -> list[tuple[PreTrainedModel, torch.Tensor]]:
        """Those without an encoder, and their tokens."""
        if self.model_tester.kind.form != "decoder":
            pytest.skip("only for decoders without an encoder")
        return [(model, inputs["input_ids"]) for model, inputs in self._models()]

    def _new(self, model: PreTrainedModel, sequences: torch.Tensor, inputs: dict[str, torch.Tensor]) -> int:
        return sequences.shape[1] - (1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1])

    def test_greedy_sampling_and_beams(self) -> None:
        """Every strategy gives as many tokens and rows as asked, in plain form and as a dict with scores."""
        strategies = (
            {}, {"do_sample": True, "top_k": 7}, {"num_beams": 2}, {"num_beams": 2, "do_sample": True},
            {"num_beams": 3, "num_return_sequences": 2},
        )  # fmt: skip
        for model, inputs in self._models():
            for strategy in strategies:
                settings = GREEDY | strategy
                torch.manual_seed(3)
                plain = model.generate(**inputs, **settings)
                torch.manual_seed(3)
                detailed = model.generate(
                    **inputs, **settings, return_dict_in_generate=True, output_scores=True, output_logits=True,
                    output_hidden_states=True,
                )  # fmt: skip
                rows = len(inputs["input_ids"]) * settings.get("num_return_sequences", 1)
                assert self._new(model, plain, inputs) == 5
                assert len(plain) == rows
                assert torch.equal(plain, detailed.sequences)
                assert len(detailed.scores) == len(detailed.logits) == 5

    def test_attentions_of_generate(self) -> None:
        """``output_attentions`` gives weights of every step and layer: queries by keys."""
        for model, inputs in self._models():
            model.set_attn_implementation("eager")
            out = model.generate(**inputs, **GREEDY, return_dict_in_generate=True, output_attentions=True)
            steps = out.decoder_attentions if model.config.is_encoder_decoder else out.attentions
            first = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
            assert len(steps) == 5
            for index, layers in enumerate(steps):
                assert len(layers) == self.model_tester.num_hidden_layers
                shape = (len(inputs["input_ids"]), self.model_tester.num_attention_heads)
                for weights in layers:
                    assert weights.shape == (*shape, 1 if index else first, first + index)

    def test_cache_changes_nothing(self) -> None:
        """The same tokens and logits without a cache and with a dynamic or static one."""
        for model, inputs in self._models():
            settings = GREEDY | {"return_dict_in_generate": True, "output_logits": True}
            expected = model.generate(**inputs, **settings, use_cache=False)
            ways: list[dict[str, Any]] = [{}]
            if not model.config.is_encoder_decoder:
                ways.append({"cache_implementation": "static", "disable_compile": True})
            for way in ways:
                found = model.generate(**inputs, **settings, **way)
                assert torch.equal(found.sequences, expected.sequences)
                torch.testing.assert_close(torch.stack(found.logits), torch.stack(expected.logits), **NEAR)

    def test_left_padding_changes_nothing(self) -> None:
        """The next token's logits are the same behind padding."""
        for model, ids in self._decoders():
            expected = model(ids).logits[:, -1]
            padded = torch.nn.functional.pad(ids, (4, 0), value=0)
            mask = torch.nn.functional.pad(torch.ones_like(ids), (4, 0))
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            found = model(padded, attention_mask=mask, position_ids=positions).logits[:, -1]
            torch.testing.assert_close(found, expected, **NEAR)

    def test_generate_from_embeddings(self) -> None:
        """``inputs_embeds`` give the tokens of ``input_ids``."""
        for model, ids in self._decoders():
            mask = torch.ones_like(ids)
            expected = model.generate(input_ids=ids, attention_mask=mask, **GREEDY)[:, ids.shape[1] :]
            found = model.generate(inputs_embeds=model.get_input_embeddings()(ids), attention_mask=mask, **GREEDY)
            assert torch.equal(found, expected)

    def test_generate_goes_on_from_a_cache(self) -> None:
        """Two calls, the second with the cache of the first, give the tokens of one."""
        for model, ids in self._decoders():
            mask = torch.ones_like(ids)
            settings = GREEDY | {"return_dict_in_generate": True, "use_cache": True}
            expected = model.generate(ids, attention_mask=mask, **settings).sequences
            first = model.generate(ids, attention_mask=mask, **settings | {"min_new_tokens": 2, "max_new_tokens": 2})
            second = model.generate(
                first.sequences, attention_mask=torch.ones_like(first.sequences),
                past_key_values=first.past_key_values,
                **settings | {"min_new_tokens": 3, "max_new_tokens": 3},
            )  # fmt: skip
            assert torch.equal(second.sequences, expected)

    def test_assisted_and_prompt_lookup_decoding(self) -> None:
        """Guessed tokens that are checked are those of greedy decoding."""
        for model, ids in self._decoders():
            ids = ids[:1]
            mask = torch.ones_like(ids)
            model.double()
            expected = model.generate(ids, attention_mask=mask, **GREEDY)
            helper = copy.deepcopy(model)
            assert torch.equal(model.generate(ids, attention_mask=mask, assistant_model=helper, **GREEDY), expected)
            found = model.generate(ids, attention_mask=mask, prompt_lookup_num_tokens=3, **GREEDY)
            assert torch.equal(found, expected)

    def test_backends_agree(self) -> None:
        """Logits of eager attention, SDPA and the default are the same, with padding on the right."""
        for model, ids in self._decoders():
            mask = torch.ones_like(ids)
            mask[1, -2:] = 0
            default = model(ids, attention_mask=mask).logits
            for name in ("eager", "sdpa"):
                model.set_attn_implementation(name)
                found = model(ids, attention_mask=mask).logits
                torch.testing.assert_close(found[mask.bool()], default[mask.bool()], **NEAR)

    def test_the_decoding_step_compiles(self) -> None:
        """``generate`` may compile the step: the model says so, and there is no break in its graph."""
        for model, ids in self._decoders():
            assert model._can_compile_fullgraph
            cache = hf.StaticCache(model.config, max_cache_len=16)
            expected = model(ids).logits[:, -1]
            with torch.no_grad():
                model(ids[:, :-1], past_key_values=cache)
                step = torch.compile(model, fullgraph=True, backend="eager")
                place = torch.tensor([[ids.shape[1] - 1]])
                found = step(ids[:, -1:], past_key_values=cache, position_ids=place).logits[:, -1]
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)

    def test_logits_to_keep(self) -> None:
        """The last logits alone, or those of chosen places."""
        for model, ids in self._decoders():
            whole = model(ids).logits
            torch.testing.assert_close(model(ids, logits_to_keep=2).logits, whole[:, -2:], **NEAR)
            places = torch.tensor([1, 4])
            torch.testing.assert_close(model(ids, logits_to_keep=places).logits, whole[:, places], **NEAR)


class PackedTests(GenerationTests):
    """Packed batches, as training libraries send them."""

    def test_packed_rows_are_as_if_alone(self) -> None:
        """Texts behind each other in one row, told apart by ``position_ids``, with the arguments of flash attention."""
        for model, ids in self._decoders():
            collator = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
            rows = [row[:length] for row, length in zip(ids.tolist(), (7, 4, 6), strict=True)]
            batch = collator([{"input_ids": row} for row in rows])
            labels = batch.pop("labels")
            found = model(**batch, labels=labels, use_cache=False)
            expected = torch.cat([model(torch.tensor([row])).logits[0] for row in rows])
            torch.testing.assert_close(found.logits[0], expected, **NEAR)
            alone = [model(torch.tensor([row]), labels=torch.tensor([row])).loss * (len(row) - 1) for row in rows]
            torch.testing.assert_close(found.loss, sum(alone) / sum(len(row) - 1 for row in rows), **NEAR)

    def test_packed_rows_may_be_longer_than_a_text(self) -> None:
        """The limit of positions is one of every text, not of the row."""
        for model, ids in self._decoders():
            longest = model.config.max_position_embeddings
            row = ids[0].repeat(longest // ids.shape[1] + 3)[None]
            positions = torch.arange(row.shape[1])[None] % (longest // 2)
            found = model(row, position_ids=positions, use_cache=False).logits
            expected = model(row[:, : longest // 2]).logits
            torch.testing.assert_close(found[:, : longest // 2], expected, **NEAR)

    def test_shifted_labels(self) -> None:
        """``shift_labels`` give the loss of ``labels``."""
        for model, ids in self._decoders():
            shifted = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
            found = model(ids, labels=ids, shift_labels=shifted).loss
            torch.testing.assert_close(found, model(ids, labels=ids).loss)


class HeadTests(GenerationTests):
    """Heads other than that of a language model, and export."""

    def _head(self, ending: str) -> type[PreTrainedModel]:
        found = [kind for kind in self.all_model_classes if kind.__name__.endswith(ending)]
        assert found or self.model_tester.kind.form != "decoder", f"no model has the head {ending}"
        if not found:
            pytest.skip("only for decoders without an encoder")
        return found[0]

    def test_sequence_classification(self) -> None:
        """One label, several labels, a number: logits and a finite loss."""
        kind = self._head("ForSequenceClassification")
        for problem, labels in (
            ("single_label_classification", torch.tensor([0, 2, 1])),
            ("multi_label_classification", torch.ones(3, 3)),
            ("regression", torch.ones(3)),
        ):
            config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
            config.num_labels, config.problem_type = 1 if problem == "regression" else 3, problem
            out = kind(config).eval()(**inputs, labels=labels)
            assert out.logits.shape == (3, config.num_labels)
            assert out.loss.isfinite()

    def test_token_classification(self) -> None:
        """A label for every token."""
        kind = self._head("ForTokenClassification")
        config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        config.num_labels = 3
        out = kind(config).eval()(**inputs, labels=inputs["input_ids"] % 3)
        assert out.logits.shape == (*inputs["input_ids"].shape, 3)
        assert out.loss.isfinite()

    def test_export_with_dynamic_shapes(self) -> None:
        """An exported program serves other batches and lengths."""
        for model, ids in self._decoders():
            mask = torch.ones_like(ids)
            shape = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", min=2, max=256)}
            program = torch.export.export(
                model, (), {"input_ids": ids, "attention_mask": mask, "use_cache": False},
                dynamic_shapes={"input_ids": shape, "attention_mask": shape, "use_cache": None},
            )  # fmt: skip
            other = torch.randint(3, 99, (2, 11))
            inputs = {"input_ids": other, "attention_mask": torch.ones_like(other), "use_cache": False}
            found = program.module()(**inputs).logits
            torch.testing.assert_close(found, model(**inputs).logits, **NEAR)

    def test_lora_finds_its_layers(self) -> None:
        """PEFT adapts the model without being told which layers."""
        peft = pytest.importorskip("peft")
        for model, ids in self._decoders():
            adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM"))
            adapted(input_ids=ids, labels=ids).loss.backward()
            assert any(p.grad is not None and "lora" in name for name, p in adapted.named_parameters())
