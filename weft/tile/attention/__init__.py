"""Attention fusion: pattern matching of forward and backward, and their kernels."""
