"""Arrays cut into the pieces of a sharding, one a device, and put together again.

Padding is filled with garbage, so that a partitioner that reads it is found out.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from weft.ir.attrs import Attrs
from weft.ir.module import Function
from weft.ir.scan import parse_type
from weft.ir.types import Array, DType, TensorType, Type, Types, dtype_of
from weft.mesh import Mesh, Sharding, parse_sharding
from weft.mesh.algebra import total_size
from weft.mesh.pieces import index_along, local_shape, pieces

SHARDING, GLOBAL = "weft.sharding", "weft.global"
Held = tuple[Sharding | None, Type]  # how a value is split, and its global type


def garbage(dtype: DType) -> object:
    """What stands in padding: a value that spoils whatever reads it."""
    if dtype.kind == "bool":
        return True
    if dtype.is_float or dtype.is_complex:
        info = ml_dtypes.finfo(dtype.real.numpy)
        nan = np.asarray(np.nan).astype(dtype.real.numpy)
        return nan if np.isnan(nan.astype(np.float64)) else info.max
    return ml_dtypes.iinfo(dtype.numpy).max


def scattered(array: Array, sharding: Sharding | None, mesh: Mesh) -> Array:
    """The pieces of an array, stacked by device; along unreduced axes one piece holds it."""
    if sharding is None:
        return np.stack([array] * mesh.size)
    local = local_shape(array.shape, sharding, mesh)
    stacked = np.full((mesh.size, *local), garbage(dtype_of(array.dtype)), array.dtype)
    last = total_size(sharding.unreduced, mesh) - 1
    for piece in pieces(array.shape, sharding, mesh):
        inside = tuple(slice(0, end - begin) for begin, end in piece.bounds)
        taken = array[tuple(slice(begin, end) for begin, end in piece.bounds)]
        is_zero = index_along(sharding.unreduced, mesh, piece.position) != last
        stacked[(piece.device, *inside)] = np.zeros_like(taken) if is_zero else taken
    return stacked


def assembled(
    stacked: Array, shape: tuple[int, ...], sharding: Sharding | None, mesh: Mesh
) -> Array:
    """The whole array; copies that are not equal, bit for bit, are an error."""
    if sharding is None:
        for device in range(1, mesh.size):
            assert _same(stacked[device], stacked[0]), f"device {device} holds another copy"
        return np.asarray(stacked[0])
    whole = np.zeros(shape, stacked.dtype)
    sums: dict[tuple[int, ...], dict[int, Array]] = {}
    bounds = {}
    for piece in pieces(shape, sharding, mesh):
        part = stacked[(piece.device, *(slice(0, end - begin) for begin, end in piece.bounds))]
        shares = sums.setdefault(piece.index, {})
        share = index_along(sharding.unreduced, mesh, piece.position)
        if share in shares:
            assert _same(part, shares[share]), f"device {piece.device} holds another copy"
        shares[share] = part
        bounds[piece.index] = piece.bounds
    for index, shares in sums.items():
        total = sum(list(shares.values())[1:], shares[min(shares)])
        whole[tuple(slice(begin, end) for begin, end in bounds[index])] = total
    return whole


def _same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def held(function: Function) -> tuple[list[Held], list[Held]]:
    """How the arguments and results of a local function are split, and their global types."""
    arguments = _held(function.arg_attrs, function.arg_types)
    return arguments, _held(function.res_attrs, function.result_types)


def _held(attrs: tuple[Attrs, ...], types: Types) -> list[Held]:
    found: list[Held] = []
    for each, type in zip(attrs or ((),) * len(types), types, strict=True):
        named = dict(each)
        sharding = parse_sharding(named[SHARDING]) if SHARDING in named else None
        found.append((sharding, parse_type(named[GLOBAL]) if GLOBAL in named else type))
    return found


def mesh_of(function: Function, meshes: Mapping[str, Mesh]) -> Mesh:
    """The mesh that a local function runs on."""
    arguments, results = held(function)
    for sharding, _ in (*arguments, *results):
        if sharding is not None:
            return sharding.resolve(meshes)
    return next(iter(meshes.values()))


def fits(local: Type, sharding: Sharding | None, whole: Type, mesh: Mesh) -> bool:
    """Whether a local type is that of a piece."""
    if not isinstance(whole, TensorType) or not isinstance(local, TensorType):
        return local == whole
    return local == whole.with_shape(local_shape(whole.sizes, sharding, mesh))
