"""The smallest preset: what has no default."""

REQUIRED = {
    "model": {"hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8, "num_attention_heads": 2},
    "data": {"sequence_length": 16}, "training": {"steps": 5},
}  # fmt: skip
