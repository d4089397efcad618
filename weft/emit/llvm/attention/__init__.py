"""Attention kernels, forward and backward, blocked over keys."""
