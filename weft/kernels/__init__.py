"""Kernels: the contract between tile, which builds them, and the emitters of all targets."""
