"""Spectral decompositions: eigenvalues and singular values of small real matrices."""
