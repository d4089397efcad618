"""Shardings: how a tensor is split over the axes of a mesh, with Shardy's semantics and text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass  # traced code makes them: TorchDynamo knows these only
from functools import lru_cache
from typing import ClassVar

from weft.errors import WeftError
from weft.mesh.axes import Axis, Mesh, named, parse_axis, parse_mesh

_DIM = re.compile(r"\{([^{}]*)\}(?:p(\d+))?")
_NAMED = re.compile(r'(?:#sdy\.sharding)?<@(?:"([^"]+)"|([\w.$-]+)), \[')
_INLINE = re.compile(r"(?:#sdy\.sharding)?<mesh(<\[[^\]]*\](?:, device_ids=\[[^\]]*\])?>), \[")
_LIST = r"\{([^{}]*)\}"
_REPLICATED = re.compile(rf"replicated={_LIST}")
_UNREDUCED = re.compile(rf"unreduced={_LIST}")


@dataclass(frozen=True, slots=True)
class DimSharding:
    """The axes that split one dim, major first; an open one may be split further."""

    axes: tuple[Axis, ...] = ()
    is_open: bool = False
    priority: int | None = None  # None is 0, the highest, and is not written

    def __str__(self) -> str:
        parts = [*map(str, self.axes), *(["?"] if self.is_open else [])]
        return f"{{{', '.join(parts)}}}" + ("" if self.priority is None else f"p{self.priority}")


@dataclass(frozen=True, slots=True)
class Sharding:
    """The sharding of one tensor: a mesh, a sharding per dim, and explicitly replicated axes."""

    mesh: str | Mesh
    dims: tuple[DimSharding, ...]
    replicated: tuple[Axis, ...] = ()
    unreduced: tuple[Axis, ...] = ()
    _is_concrete: ClassVar[bool] = False  # read by JAX of every sharding: this one holds no devices

    def resolve(self, meshes: Mapping[str, Mesh]) -> Mesh:
        """The mesh itself."""
        return named(self.mesh, meshes)

    def body(self) -> str:
        """`<@mesh, [{"x"}, {?}]>`."""
        mesh = f"@{self.mesh}" if isinstance(self.mesh, str) else f"mesh{self.mesh}"
        parts = [mesh, f"[{', '.join(map(str, self.dims))}]"]
        for word, axes in (("replicated", self.replicated), ("unreduced", self.unreduced)):
            if axes:
                parts.append(f"{word}={{{', '.join(map(str, axes))}}}")
        return f"<{', '.join(parts)}>"

    def __str__(self) -> str:
        return f"#sdy.sharding{self.body()}"


@lru_cache(maxsize=4096)
def parse_sharding(text: str) -> Sharding:
    """`#sdy.sharding<@mesh, [{"x"}, {?}]>`, or the part from `<` on."""
    text = text.strip()
    if match := _NAMED.match(text):
        mesh: str | Mesh = match[1] or match[2]
    elif match := _INLINE.match(text):
        mesh = parse_mesh(match[1])
    else:
        raise WeftError(f"{text!r} is not a sharding", help='expected <@mesh, [{"axis"}, {}]>')
    end = text.index("]", match.end())
    replicated, unreduced = _REPLICATED.search(text, end), _UNREDUCED.search(text, end)
    return Sharding(
        mesh,
        tuple(_dim(m) for m in _DIM.finditer(text, match.end(), end)),
        _axes(replicated[1]) if replicated else (),
        _axes(unreduced[1]) if unreduced else (),
    )


def _dim(match: re.Match[str]) -> DimSharding:
    parts = [p.strip() for p in match[1].split(",") if p.strip()]
    is_open = bool(parts) and parts[-1] == "?"
    axes = tuple(parse_axis(p) for p in parts if p != "?")
    return DimSharding(axes, is_open, int(match[2]) if match[2] else None)


def _axes(text: str) -> tuple[Axis, ...]:
    return tuple(parse_axis(p) for p in text.split(",") if p.strip())


def parse_axes(text: str) -> tuple[Axis, ...]:
    """The axes in `#sdy<manual_axes{"x", "y"}>`."""
    return _axes(text[text.index("{") + 1 : text.rindex("}")])


def parse_shardings(text: str) -> tuple[Sharding, ...]:
    """`#sdy.sharding_per_value<[<@mesh, [{}]>, ...]>`."""
    starts = [m.start() for m in re.finditer(r"<(?:@|mesh<)", text)]
    ends = [*starts[1:], len(text)] if starts else []
    return tuple(parse_sharding(text[a:b]) for a, b in zip(starts, ends, strict=True))
