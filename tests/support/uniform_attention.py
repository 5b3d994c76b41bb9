"""A model whose answers can be worked out by hand."""

import torch

import antiphase

SIGNAL, CONSTANT, RESULT = 0, 1, 2
"""Channels."""
STRENGTH = 3.0


def uniform_attention(tiny_config, kind, words, signals, answers):
    """One layer whose maps are uniform, and whose values are zero but at words that carry a signal.

    What attention gives goes to a channel of its own, which the head reads as 5 more for every one of the answers.
    """
    config = tiny_config(
        kind, vocab_size=words, num_hidden_layers=1, hidden_size=16, num_attention_heads=4, num_key_value_heads=2,
        head_dim=4, tie_word_embeddings=False,
    )  # fmt: skip
    model = antiphase.AntiphaseForCausalLM(config).eval().double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.zero_()
        model.model.embed_tokens.weight[:, CONSTANT] = 1.0
        model.model.embed_tokens.weight[list(signals), SIGNAL] = STRENGTH
        attention = model.model.layers[0].self_attn
        attention.v_proj.weight[:, SIGNAL] = 1.0
        attention.o_proj.weight[RESULT] = 0.1
        model.lm_head.weight[list(answers), RESULT] = 5.0
    return model
