"""Emit: kernels become programs of a target."""
