"""Attention layers for any PyTorch model: plain modules that need torch alone and get their attention function as an
argument.
"""
