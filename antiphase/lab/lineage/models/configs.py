"""Configurations of the earlier models: recurrent networks, convolutions, the Transformer of 2017."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

from antiphase.base.errors import InputError, nearest
from antiphase.lab.lineage.names import ENCODER_NORMS
from antiphase.models.configuration import ATTENTION_TYPES, NamedFields, refuse_unknown_fields
from antiphase.models.first_use import register_models

CELLS = ("rnn", "lstm")
EMBEDDINGS = ("learned", "one_hot")
NORM_PLACES = ("pre", "post")
ACTIVATIONS = ("relu", "gelu", "swiglu")
POSITIONS = ("sinusoidal", "learned", "rotary", "none")


class ClassicConfig(NamedFields):
    """Base of these configurations: a vocabulary, dropout, and checks that name the field.

    Raises:
        InputError: a field is unknown (the message gives the nearest known one), or a value is invalid; the message
            names the field.
    """

    vocab_size: int = 32000
    embeddings: str = "learned"
    """ "learned" vectors, or "one_hot" (token i is the i-th unit vector), which has no weights and suits characters."""
    dropout: float = 0.0
    """Dropout rate; each model defines where it applies."""
    tie_word_embeddings: bool = False
    """Whether the language-model head shares the embedding's matrix."""
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        refuse_unknown_fields(type(self), kwargs)
        self._check()
        super().__post_init__(**kwargs)
        register_models()

    @property
    def embedding_width(self) -> int:
        """Width of a token's vector."""
        raise NotImplementedError

    @property
    def pooled_width(self) -> int:
        """Width of a text vector."""
        raise NotImplementedError

    def _check(self) -> None:
        _at_least_one(self, "vocab_size")
        _one_of(self, "embeddings", EMBEDDINGS)
        if not _is_number(self.dropout) or not 0 <= self.dropout < 1:
            raise InputError(f"dropout must be at least 0 and below 1, got {self.dropout!r}")
        if self.embeddings == "one_hot" and self.tie_word_embeddings:
            raise InputError("tie_word_embeddings needs embeddings=learned: one-hot vectors have no matrix to share")


class RecurrentConfig(ClassicConfig):
    """A recurrent network (Elman 1990) or LSTM (Hochreiter and Schmidhuber 1997), unidirectional or bidirectional.

    Dropout applies to embeddings, between layers and before the head.
    """

    model_type = "antiphase_recurrent"

    cell: str = "lstm"
    """"rnn" (tanh) or "lstm"."""
    bidirectional: bool = False
    """Whether to read the text in both directions; the model then cannot predict the next token."""
    embedding_size: int = 300
    """Width of learned embeddings."""
    hidden_size: int = 256
    """Width of the state, in each direction."""
    num_hidden_layers: int = 1

    @property
    def embedding_width(self) -> int:
        return self.embedding_size if self.embeddings == "learned" else self.vocab_size

    @property
    def pooled_width(self) -> int:
        return self.hidden_size * (2 if self.bidirectional else 1)

    def _check(self) -> None:
        super()._check()
        _at_least_one(self, "embedding_size", "hidden_size", "num_hidden_layers")
        _one_of(self, "cell", CELLS)
        if self.tie_word_embeddings and self.embedding_size != self.hidden_size:
            raise InputError(
                f"tie_word_embeddings needs embedding_size ({self.embedding_size}) equal to hidden_size "
                f"({self.hidden_size})"
            )


class ConvolutionConfig(ClassicConfig):
    """The convolutional classifier of Kim (2014, 1408.5882), with its sizes as defaults.

    Dropout applies before the classifier.
    """

    model_type = "antiphase_convolution"

    embedding_size: int = 300
    """Width of learned embeddings."""
    filter_widths: list[int] = field(default_factory=lambda: [3, 4, 5])
    """Width in tokens of the filters in each group."""
    num_filters: int = 100
    """Number of filters of each width."""
    dropout: float = 0.5
    max_norm: float | None = 3.0
    """Largest norm of a class's weight vector (section 3.1, s); None means no limit."""

    @property
    def embedding_width(self) -> int:
        return self.embedding_size if self.embeddings == "learned" else self.vocab_size

    @property
    def pooled_width(self) -> int:
        return self.num_filters * len(self.filter_widths)

    def _check(self) -> None:
        super()._check()
        _at_least_one(self, "embedding_size", "num_filters")
        widths = self.filter_widths
        if not _is_list(widths) or not widths or not all(map(_is_count, widths)):
            raise InputError(f"filter_widths must be whole numbers of at least 1, got {widths!r}")
        if self.max_norm is not None and not (_is_number(self.max_norm) and self.max_norm > 0):
            raise InputError(f"max_norm must be above 0, or null for none; got {self.max_norm!r}")
        if self.tie_word_embeddings:
            raise InputError("tie_word_embeddings cannot be used: a convolutional classifier predicts no tokens")


class VanillaConfig(ClassicConfig):
    """The Transformer of Vaswani et al. (2017, 1706.03762), encoder or decoder, with later modifications as options.

    The defaults are the paper's encoder, with biases. Dropout applies to the sums of embeddings and positions and to
    the output of each sublayer (section 5.4), but not to attention weights.
    """

    model_type = "antiphase_vanilla"
    keys_to_ignore_at_inference: ClassVar = ["past_key_values", "cache"]

    is_causal: bool = False
    """Whether a token sees only itself and those before it (a decoder), or all tokens (an encoder)."""
    attention_type: str = "softmax"
    """"softmax", "differential" (2410.05258) or "differential_v2"."""
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    """Softmax maps per layer; a differential layer has half as many heads."""
    mlp_ratio: float = 4.0
    """Width of the MLP's hidden layer as a multiple of ``hidden_size``."""
    activation: str = "relu"
    """"relu", "gelu", or "swiglu" (2002.05202), which has a third matrix."""
    mlp_bias: bool = True
    attention_bias: bool = True
    """Whether the four projections of attention have biases."""
    norm: str = "layer_norm"
    """ "layer_norm", "rms_norm" (1910.07467), or "batch_norm" over the real tokens of a batch, later ones included."""
    norm_position: str = "post"
    """"post": norm(x + f(x)), as in 2017; "pre": x + f(norm(x)), and one norm at the end (2002.04745)."""
    norm_eps: float = 1e-5
    head_norm_eps: float = 1e-5
    """ε of the RMSNorm of each head's output ("differential" only)."""
    positions: str = "sinusoidal"
    """"sinusoidal" (section 3.5) or "learned" vectors added to the embeddings, "rotary" (2104.09864) or "none"."""
    max_position_embeddings: int = 512
    """Longest text in tokens."""
    rope_parameters: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    """Parameters of rotary positions."""
    scale_embeddings: bool = True
    """Whether to multiply embeddings by √hidden_size (section 3.4). False suits pretrained word vectors."""
    use_cache: bool = True
    """Whether to cache keys and values for the next call (decoders)."""

    @property
    def embedding_width(self) -> int:
        return self.hidden_size

    @property
    def pooled_width(self) -> int:
        return self.hidden_size

    @property
    def head_dim(self) -> int:
        """Width of a map."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_key_value_heads(self) -> int:
        """Key maps per layer; in V2 both maps of a head share one."""
        return self.num_attention_heads // (2 if self.attention_type == "differential_v2" else 1)

    @property
    def intermediate_size(self) -> int:
        """Width of the MLP's hidden layer."""
        return round(self.mlp_ratio * self.hidden_size)

    @property
    def layer_types(self) -> list[str]:
        """Every layer has full attention, in transformers' terms."""
        return ["full_attention"] * self.num_hidden_layers

    def _check(self) -> None:
        super()._check()
        _at_least_one(self, "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
        _one_of(self, "attention_type", ATTENTION_TYPES)
        _one_of(self, "activation", ACTIVATIONS)
        _one_of(self, "norm", ENCODER_NORMS)
        _one_of(self, "norm_position", NORM_PLACES)
        _one_of(self, "positions", POSITIONS)
        for name in ("mlp_ratio", "norm_eps", "head_norm_eps"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 < value < float("inf"):
                raise InputError(f"{name} must be a number above 0, got {value!r}")
        if self.intermediate_size < 1:
            raise InputError(
                f"mlp_ratio {self.mlp_ratio} gives an MLP of width 0 for hidden_size {self.hidden_size}; raise it"
            )
        maps = self.num_attention_heads
        if self.hidden_size % maps:
            raise InputError(f"num_attention_heads ({maps}) does not divide hidden_size ({self.hidden_size})")
        if self.attention_type != "softmax" and maps % 2:
            raise InputError(
                f"num_attention_heads must be even for differential attention (two maps a head), got {maps}"
            )
        if self.positions == "rotary" and self.head_dim % 2:
            raise InputError(
                f"hidden_size / num_attention_heads must be even for positions=rotary, got {self.head_dim}"
            )
        if self.embeddings == "one_hot" and self.hidden_size < self.vocab_size:
            raise InputError(
                f"hidden_size ({self.hidden_size}) must be at least vocab_size ({self.vocab_size}) for "
                "embeddings=one_hot"
            )


class SequenceToSequenceConfig(VanillaConfig):
    """The encoder and decoder of Vaswani et al. (2017), with ``num_hidden_layers`` each, for pairs of texts.

    The decoder starts from ``bos_token_id``; padding is ``pad_token_id``. Cross-attention also has ``attention_type``.
    """

    model_type = "antiphase_sequence_to_sequence"
    has_no_defaults_at_init = True
    """For transformers 5.17, which makes a default configuration when it saves one: here two ids have no default."""

    source_vocab_size: int | None = None
    """Vocabulary of the encoder; None means ``vocab_size``."""
    is_causal: bool = True
    """Applies to the decoder."""
    is_encoder_decoder: bool = True

    def _check(self) -> None:
        super()._check()
        if self.source_vocab_size is None:
            self.source_vocab_size = self.vocab_size
        _at_least_one(self, "source_vocab_size")
        for name in ("is_causal", "is_encoder_decoder"):
            if not getattr(self, name):
                raise InputError(f"{name} must be true: the decoder writes one token after another from the encoder's")
        for name in ("pad_token_id", "bos_token_id"):
            if getattr(self, name) is None:
                raise InputError(f"{name} must be set: the decoder starts from bos_token_id, pad_token_id fills up")
        if self.embeddings == "one_hot" and self.hidden_size < self.source_vocab_size:
            raise InputError(
                f"hidden_size ({self.hidden_size}) must be at least source_vocab_size ({self.source_vocab_size}) for "
                "embeddings=one_hot"
            )


CONFIGURATIONS: tuple[type[ClassicConfig], ...] = (
    RecurrentConfig, ConvolutionConfig, VanillaConfig, SequenceToSequenceConfig,
)  # fmt: skip


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))


def _at_least_one(config: ClassicConfig, *names: str) -> None:
    for name in names:
        if not _is_count(getattr(config, name)):
            raise InputError(f"{name} must be a whole number of at least 1, got {getattr(config, name)!r}")


def _one_of(config: ClassicConfig, name: str, known: tuple[str, ...]) -> None:
    value = getattr(config, name)
    if value not in known:
        raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}{nearest(str(value), known)}")
