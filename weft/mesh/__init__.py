"""Meshes: the logical arrangement of devices along named axes, and the groups that meet in it."""

from weft.mesh.axes import Axis, Mesh, parse_axis, parse_mesh
from weft.mesh.groups import Groups, Lists, MeshAxes, parse_mesh_axes
from weft.mesh.sharding import (
    DimSharding,
    Sharding,
    parse_axes,
    parse_sharding,
    parse_shardings,
)

__all__ = [
    "Axis",
    "DimSharding",
    "Groups",
    "Lists",
    "Mesh",
    "MeshAxes",
    "Sharding",
    "parse_axes",
    "parse_axis",
    "parse_mesh",
    "parse_mesh_axes",
    "parse_sharding",
    "parse_shardings",
]
