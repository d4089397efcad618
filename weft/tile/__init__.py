"""Tile: the nodes of a local program become kernels."""

from weft.tile.tile import tile

__all__ = ["tile"]
