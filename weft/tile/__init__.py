"""Tile: the nodes of a local program become kernels."""

from weft.tile.groups import group
from weft.tile.tile import tile

__all__ = ["group", "tile"]
