"""The models: recurrent, convolutional, and the Transformer of 2017."""
