"""Kernels that call LAPACK: decompositions that have no generated kernel."""
