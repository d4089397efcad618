"""Tile: the nodes of a local program become kernels, in order, over buffers with offsets."""

from weft.tile.fusion.groups import group
from weft.tile.tile import tile

__all__ = ["group", "tile"]
