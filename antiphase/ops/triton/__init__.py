"""Fused differential attention for GPUs, in Triton; loaded only by the launchers."""
