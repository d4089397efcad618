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
from weft.mesh.spelling import P, as_mesh, as_sharding, as_spec

__all__ = [
    "Axis",
    "DimSharding",
    "Groups",
    "Lists",
    "Mesh",
    "MeshAxes",
    "P",
    "Sharding",
    "as_mesh",
    "as_sharding",
    "as_spec",
    "parse_axes",
    "parse_axis",
    "parse_mesh",
    "parse_mesh_axes",
    "parse_sharding",
    "parse_shardings",
]
