"""Simplification: exact algebra and constant folding."""
