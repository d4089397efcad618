"""Single-node kernels: sort, gather, scatter, windows, factorizations."""
