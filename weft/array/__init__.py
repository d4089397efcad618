"""Values of many devices: stacks, arrays, devices, and splitting and assembling arrays."""

from weft.array.array import Array, Shard
from weft.array.device import Device, devices
from weft.array.put import converted, put, put_local
from weft.array.stacked import Stacked
from weft.mesh.sub_axes import SubAxes

__all__ = [
    "Array",
    "Device",
    "Shard",
    "Stacked",
    "SubAxes",
    "converted",
    "devices",
    "put",
    "put_local",
]
