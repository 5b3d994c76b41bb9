"""TRL's trainers and other people's quantizers take these models, by path, as they take Llama."""

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM

import antiphase as package
from antiphase.base.errors import InputError
from support.models import ids_of, randomize

KINDS = ["softmax", "differential", "differential_v2", "differential_llama"]
every_kind = pytest.mark.parametrize("kind", KINDS)
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
COMMON = {
    "max_steps": 3, "per_device_train_batch_size": 2, "learning_rate": 1e-2, "report_to": [], "use_cpu": True,
    "disable_tqdm": True, "save_strategy": "no", "bf16": False, "gradient_checkpointing": False, "logging_steps": 1,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, text_tokenizer, tiny_config):
    """A factory of saved small models with their tokenizer, at the size of its vocabulary."""
    from transformers import LlamaConfig

    def save(kind):
        size = len(text_tokenizer)
        if kind == "differential_llama":
            plain = LlamaConfig(
                vocab_size=size, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
                pad_token_id=0, bos_token_id=1, eos_token_id=2,
            )  # fmt: skip
            model = AutoModelForCausalLM.from_config(package.differential_config(plain))
        else:
            model = package.AntiphaseForCausalLM(tiny_config(kind, vocab_size=size))
        randomize(model, 0.1).save_pretrained(tmp_path / "model")
        text_tokenizer.pad_token = text_tokenizer.pad_token or text_tokenizer.eos_token
        text_tokenizer.chat_template = TEMPLATE
        text_tokenizer.save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return save


def losses(trainer):
    """Train; the loss of every step."""
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def changed(trainer, folder):
    """Whether training moved the weights of the saved model."""
    name = "model.layers.0.self_attn.q_proj.weight"
    before = AutoModelForCausalLM.from_pretrained(folder).get_parameter(name)
    return not torch.equal(before, trainer.model.get_parameter(name))


@pytest.mark.slow
@every_kind
def test_sft_with_packing_takes_a_path(folder, tmp_path, generated_text, kind):
    trl = pytest.importorskip("trl", reason="trl is not installed")
    path = folder(kind)
    data = Dataset.from_dict({"text": [generated_text[start : start + 120] for start in range(0, 6000, 120)]})
    settings = trl.SFTConfig(
        output_dir=str(tmp_path / "out"), packing=True, padding_free=True, max_length=64,
        model_init_kwargs={"dtype": "float32"}, **COMMON,
    )  # fmt: skip
    trainer = trl.SFTTrainer(model=path, args=settings, train_dataset=data)
    assert len(losses(trainer)) == 3
    assert changed(trainer, path)


@pytest.mark.slow
@every_kind
def test_dpo_takes_a_path(folder, tmp_path, kind):
    trl = pytest.importorskip("trl", reason="trl is not installed")
    path = folder(kind)
    rows = [{"prompt": "The one", "chosen": " and two", "rejected": " or none"} for _ in range(8)]
    settings = trl.DPOConfig(output_dir=str(tmp_path / "out"), max_length=32, **COMMON)
    trainer = trl.DPOTrainer(model=path, args=settings, train_dataset=Dataset.from_list(rows))
    found = losses(trainer)
    assert len(found) == 3
    assert found[-1] < found[0]
    assert changed(trainer, path)


@pytest.mark.slow
@every_kind
def test_grpo_takes_a_path(folder, tmp_path, kind):
    trl = pytest.importorskip("trl", reason="trl is not installed")
    path = folder(kind)
    settings = trl.GRPOConfig(
        output_dir=str(tmp_path / "out"), num_generations=2, max_completion_length=8, beta=0.0, **COMMON
    )
    data = Dataset.from_list([{"prompt": "The one"} for _ in range(8)])
    reward = lambda completions, **_: [float(text.count("e")) + len(text) / 7 for text in completions]  # noqa: E731  # short
    trainer = trl.GRPOTrainer(model=path, reward_funcs=reward, args=settings, train_dataset=data)
    assert len(losses(trainer)) == 3
    assert changed(trainer, path)


@pytest.mark.slow
@every_kind
def test_torchao_weights_survive_saving_and_loading(folder, tmp_path, kind):
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    from transformers import TorchAoConfig

    path, ids = folder(kind), ids_of(1, 9)
    settings = TorchAoConfig(quantization.Int8WeightOnlyConfig())
    model = AutoModelForCausalLM.from_pretrained(path, quantization_config=settings, dtype=torch.float32)
    expected = model(ids).logits
    assert not torch.equal(expected, AutoModelForCausalLM.from_pretrained(path)(ids).logits)
    model.save_pretrained(tmp_path / "quantized")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "quantized")
    torch.testing.assert_close(loaded(ids).logits, expected)


@pytest.mark.slow
@every_kind
def test_bitsandbytes_weights_survive_saving_and_loading(folder, tmp_path, kind):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    from transformers import BitsAndBytesConfig

    path, ids = folder(kind), ids_of(1, 9)
    settings = BitsAndBytesConfig(load_in_8bit=True)
    model = AutoModelForCausalLM.from_pretrained(path, quantization_config=settings, device_map={"": "cpu"})
    expected = model(ids).logits
    model.save_pretrained(tmp_path / "quantized")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "quantized", device_map={"": "cpu"})
    torch.testing.assert_close(loaded(ids).logits, expected)


def test_unknown_fields_of_a_file_are_kept_with_a_warning(tmp_path, tiny_config):
    config = tiny_config("differential")
    config.save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace("{", '{"served_by": "others", "hiden_size": 3,', 1))
    with pytest.warns(UserWarning, match=r"'hiden_size' is unknown and has no effect; did you mean 'hidden_size'"):
        loaded = package.AntiphaseConfig.from_pretrained(tmp_path)
    assert loaded.served_by == "others"
    assert loaded.hidden_size == config.hidden_size
    with pytest.raises(InputError, match="unknown configuration field 'served_by'"):
        package.AntiphaseConfig(served_by="others")
