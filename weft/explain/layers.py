"""The values of a program by layer, each with its local shard."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePath

from weft.explain.names import op_name
from weft.explain.owners import Owner
from weft.explain.reasons import Reasons
from weft.ir.location import Location
from weft.ir.types import TensorType
from weft.mesh import Sharding
from weft.mesh.pieces import counts, local_shape
from weft.records import dataclass

_WRAPPED = re.compile(r"(\w+)\((.*)\)")
_FORWARD = {"jit", "pjit", "jvp", "vmap", "remat", "checkpoint", "custom_jvp", "custom_vjp"}
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One value, or several identical ones of a layer."""

    names: tuple[str, ...]
    op: str
    type: TensorType
    sharding: Sharding | None
    local: TensorType
    note: str

    @property
    def bytes(self) -> int:
        """The bytes of one value on each device."""
        return self.local.nbytes


@dataclass(frozen=True, slots=True)
class Layer:
    """The values of one named scope, or of one line."""

    name: str
    rows: tuple[LayerRow, ...]
    alike: tuple[str, ...] = ()  # other layers with the same rows

    @property
    def is_signature(self) -> bool:
        """Whether it is the layer of the program's arguments or results."""
        return self.name in ("arguments", "results")

    @property
    def bytes(self) -> int:
        """The bytes of all its values on each device."""
        return sum(row.bytes * len(row.names) for row in self.rows)


def layers(reasons: Reasons, *, everything: bool = False) -> list[Layer]:
    """Every tensor of a program: arguments, layers in program order, results.

    Identical rows and layers are merged, and scalars left out, unless `everything` is set.
    """
    rows_by_layer: dict[str, list[LayerRow]] = {"arguments": []}
    results: list[LayerRow] = []
    for cell, owner in enumerate(reasons.owners):
        type = reasons.propagated.graph.types[cell]
        if owner is None or not isinstance(type, TensorType):
            continue
        if not type.shape and not everything:
            continue
        row = _row(reasons, cell, owner, type)
        if owner.result is not None:
            results.append(row)
        elif owner.argument is not None and owner.region_of is None and not owner.calls:
            rows_by_layer["arguments"].append(row)
        elif owner.argument is None:
            rows_by_layer.setdefault(layer_name(owner), []).append(row)
    made = [Layer(name, tuple(rows)) for name, rows in rows_by_layer.items() if rows]
    made += [Layer("results", tuple(results))] if results else []
    return made if everything else _alike(made)


def _row(reasons: Reasons, cell: int, owner: Owner, type: TensorType) -> LayerRow:
    sharding = reasons.sharding(cell)
    node = owner.value.node if owner.result is None else None
    local = type
    if sharding is not None:
        local = type.with_shape(local_shape(type.bounds, sharding, reasons.history.mesh(sharding)))
    op = op_name(node) if node is not None else ""
    note = _note(reasons, cell, type, sharding)
    return LayerRow((reasons.label(cell),), op, type, sharding, local, note)


def _note(reasons: Reasons, cell: int, type: TensorType, sharding: Sharding | None) -> str:
    """A remark on a large replicated tensor or on padding."""
    if not type.shape:
        return ""
    if sharding is not None and any(d.axes for d in sharding.dims):
        pieces = counts(sharding, reasons.history.mesh(sharding))
        uneven = [d for d, n in enumerate(pieces) if type.bounds[d] % n]
        return f"dim {uneven[0]} padded" if uneven else ""
    stopped = [c for d in range(type.rank) for c in reasons.stopped.get((cell, d), ())]
    if stopped:
        return "replicated, conflict"
    annotated = reasons.propagated.graph.initial[cell] is not None
    return "replicated, as annotated" if annotated else "replicated"


# Names


def layer_name(owner: Owner) -> str:
    """The named scope of a value, with those of its call sites; else its line."""
    scopes: list[str] = []
    for place in (*(call.loc for call in owner.calls), owner.loc):
        scopes += scope(place)
    if scopes:
        backward = "backward" in scopes
        path = "/".join(dict.fromkeys(s for s in scopes if s != "backward"))
        return f"{path} (backward)" if backward else path
    file, number = owner.line.line or ("", 0)
    if not file or file.endswith(".mlir"):
        return f"@{owner.function.name}"
    source = linecache.getline(file, number).strip()
    return f"{PurePath(file).name}:{number}  {source}".rstrip()


def scope(loc: Location) -> list[str]:
    """`jit(step)/transpose(jvp(layer0))/mlp/dot_general` as layer0, mlp, backward."""
    parts = (loc.name or "").split("/")[:-1]
    names: list[str] = []
    backward = False
    for n, part in enumerate(parts):
        name, transposed = _unwrapped(part)
        backward |= transposed
        is_formula = "->" in name  # the scope names of einsum
        if name and not is_formula and not (n == 0 and part.startswith(("jit(", "pjit("))):
            names.append(name)
    return [*names, "backward"] if names and backward else names


def _unwrapped(part: str) -> tuple[str, bool]:
    transposed = False
    while match := _WRAPPED.fullmatch(part):
        if match[1] not in _FORWARD and match[1] != "transpose":
            break
        transposed |= match[1] == "transpose"
        part = match[2]
    return part, transposed


# Merging


def _alike(found: Iterable[Layer]) -> list[Layer]:
    """Merge identical rows of a layer, then identical layers."""
    layers_by_key: dict[object, Layer] = {}
    for layer in found:
        rows: dict[object, LayerRow] = {}
        for row in layer.rows:
            key = (row.type, row.sharding, row.note)
            first = rows.get(key)
            rows[key] = row if first is None else replace(first, names=first.names + row.names)
        merged = replace(layer, rows=tuple(rows.values()))
        # layers.0 and layers.1 are shown once, if their rows are equal.
        numberless = _NUMBER.sub("#", layer.name)
        signature = (numberless, *((k, len(r.names)) for k, r in rows.items()))
        other = layers_by_key.get(signature)
        if other is None:
            layers_by_key[signature] = merged
        else:
            layers_by_key[signature] = replace(other, alike=(*other.alike, layer.name))
    return list(layers_by_key.values())
