"""Fusion: which nodes of a region become one kernel, and in which order kernels run."""
