"""Models for Hugging Face: a softmax or differential decoder, and differential forms of other architectures."""
