"""Kernels that are several launches, with scratch between them."""
