"""Candidates of the triton target's kernels."""
