"""Tile: lower a local program to kernels, in order, over planned buffers."""

from weft.tile.fusion.groups import group
from weft.tile.tile import tile

__all__ = ["group", "tile"]
