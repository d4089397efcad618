"""Fusion: which nodes of a region form one kernel, and the order of kernels."""
