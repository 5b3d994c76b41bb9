"""Recurrent and convolutional models, and the Transformer of 2017."""
