"""Nodes that are a kernel by themselves: sort, gather, scatter, windows, factorizations."""
