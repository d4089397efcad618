"""Attention, forward and backward, in blocks of keys."""
