"""CPU attention in C++: forward, backward and decoding, behind a plain C interface."""
