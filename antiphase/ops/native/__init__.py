"""Attention of processors in C++: forward, backward and decoding, behind a plain C interface."""
