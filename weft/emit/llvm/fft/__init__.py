"""Fourier transforms as passes over lanes of independent transforms."""
