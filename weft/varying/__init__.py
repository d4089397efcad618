"""Divergence analysis: the mesh axes along which values of a local program differ by device."""
