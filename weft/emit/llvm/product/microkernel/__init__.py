"""Microkernels: the innermost loop of a product, on vectors or on matrix tiles."""
