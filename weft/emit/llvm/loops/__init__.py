"""Kernels without a product: loop nests over the factors, with reductions."""
