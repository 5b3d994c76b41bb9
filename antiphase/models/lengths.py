"""What models say of a text that has more tokens than they have positions."""

from __future__ import annotations

from transformers.utils import logging

logger = logging.get_logger(__name__)


def warn_of_length(longest: int) -> None:
    """Say once that results may be poor; rotations and sinusoids go on beyond ``max_position_embeddings``."""
    logger.warning_once(
        f"a text is longer than the model's max_position_embeddings ({longest}); its results may be poor beyond them"
    )
