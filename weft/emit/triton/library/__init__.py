"""Calls of PyTorch: products, attention and single nodes."""
