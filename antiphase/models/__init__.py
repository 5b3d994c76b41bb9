"""Models for Hugging Face: a decoder with softmax or differential attention, and differential forms of other
architectures.
"""
