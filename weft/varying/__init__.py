"""Varying: along which axes of the mesh the values of a local program differ between devices."""
