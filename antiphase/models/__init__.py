"""Models for Hugging Face: one decoder, whose attention is softmax or differential, and the models that led here."""
