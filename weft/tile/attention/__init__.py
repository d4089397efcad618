"""Attention as one kernel: found in a region, forward and backward."""
