"""`dynamic_shapes` as torch.export has them: the dims of arguments that vary, by symbol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from weft.capture.torch.sizes.extents import Extent, SizeSymbol, SymbolSizes
from weft.errors import WeftError
from weft.records import dataclass

# Of one leaf of a call: the extents of its dims that vary; of an integer, its own as dim -1.
LeafExtents: TypeAlias = dict[int, Extent]
NUMBER = -1


@dataclass(frozen=True, slots=True)
class CallShapes:
    """The symbols of a kind of calls, and where each leaf of the arguments has them."""

    symbols: tuple[SizeSymbol, ...]
    leaves: tuple[LeafExtents, ...]
    names: tuple[str, ...]  # of the leaves

    def sizes(self, leaves: Sequence[Any]) -> SymbolSizes:
        """The sizes of a call, or an error if they differ or are out of range."""
        sizes_by_symbol: dict[int, tuple[int, str]] = {}
        for leaf, extents, name in zip(leaves, self.leaves, self.names, strict=True):
            for dim, extent in extents.items():
                actual = leaf if dim == NUMBER else leaf.shape[dim]
                place = name if dim == NUMBER else f"dim {dim} of {name}"
                self._meet(sizes_by_symbol, extent, actual, place)
        return tuple([sizes_by_symbol[n][0] for n in range(len(self.symbols))])

    def varying(self, sizes: SymbolSizes) -> CallShapes:
        """The shapes without the symbols whose sizes have programs of their own, such as 1."""
        alone = [
            s.smallest(s.bucket(n)) == s.bucket(n) for s, n in zip(self.symbols, sizes, strict=True)
        ]
        if not any(alone):
            return self
        left = [n for n, is_alone in enumerate(alone) if not is_alone]
        leaves = []
        for extents in self.leaves:
            pairs = [(d, e) for d, e in extents.items() if e.symbol in left]
            leaves.append(
                {
                    d: Extent(left.index(e.symbol), e.scale, e.offset)
                    for d, e in pairs
                    if e.symbol is not None
                }
            )
        return CallShapes(tuple([self.symbols[n] for n in left]), tuple(leaves), self.names)

    def _meet(
        self, sizes_by_symbol: dict[int, tuple[int, str]], extent: Extent, actual: int, place: str
    ) -> None:
        assert extent.symbol is not None, "what is fixed is not listed"
        symbol = self.symbols[extent.symbol]
        size, rest = divmod(actual - extent.offset, extent.scale)
        if rest or size < 0:
            raise WeftError(
                f"{place} is {actual}, which is no value of {_text(extent, symbol)}",
                help=f"give {_text(extent, symbol)} for some whole number {symbol.name}",
            )
        known, at = sizes_by_symbol.setdefault(extent.symbol, (size, place))
        if known != size:
            raise WeftError(
                f"{symbol.name} is {known} by {at}, but {size} by {place}",
                help=f"both have the Dim {symbol.name!r}: give them one size, or two Dims",
            )
        if not symbol.has(size):
            raise WeftError(
                f"{place} is {actual}: "
                f"{symbol.name} is {size}, out of its range {range_of(symbol)}",
                help=f"pad or split the argument, or compile with {dim_text(symbol, size)}",
            )


def _text(extent: Extent, symbol: SizeSymbol) -> str:
    """`2*batch + 1`."""
    first = symbol.name if extent.scale == 1 else f"{extent.scale}*{symbol.name}"
    if not extent.offset:
        return first
    return f"{first} {'+' if extent.offset > 0 else '-'} {abs(extent.offset)}"


def range_of(symbol: SizeSymbol) -> str:
    """`1..64`, or `1..` without a largest size."""
    return f"{symbol.least}..{'' if symbol.most is None else symbol.most}"


def dim_text(symbol: SizeSymbol, size: int) -> str:
    """The Dim of a symbol whose range has one more size."""
    least = min(symbol.least, size)
    most = "" if symbol.most is None else f", max={max(symbol.most, size)}"
    return f"torch.export.Dim({symbol.name!r}, min={least}{most})"


def batch_shapes(leaves: Sequence[Any], names: Sequence[str]) -> CallShapes:
    """`dynamic=True`: dim 0 of the first tensor, and of all tensors with its size there."""
    import torch

    tensors = [leaf if isinstance(leaf, torch.Tensor) and leaf.dim() else None for leaf in leaves]
    size = next((leaf.shape[0] for leaf in tensors if leaf is not None), None)
    extents: list[LeafExtents] = [
        {0: Extent(0, 1, 0)} if leaf is not None and leaf.shape[0] == size else {}
        for leaf in tensors
    ]
    symbols = () if size is None else (SizeSymbol("batch"),)
    return CallShapes(symbols, tuple(extents), tuple(names))


class _Reader:
    """The symbols of `dynamic_shapes`, in the order in which they are met."""

    def __init__(self) -> None:
        self.symbols: dict[str, SizeSymbol] = {}

    def extent(self, spec: Any, size: int, place: str) -> Extent | None:
        """The extent of one dim; None if it does not vary."""
        import torch
        from torch.export.dynamic_shapes import _DimHint, _DimHintType

        if spec is None or (isinstance(spec, _DimHint) and spec.type is _DimHintType.STATIC):
            return None
        if isinstance(spec, int) and not isinstance(spec, bool):
            if spec != size:
                raise WeftError(
                    f"dynamic_shapes: {place} is {size}, not {spec}",
                    help="give None for a size that each program is compiled for",
                )
            return None
        if isinstance(spec, _DimHint):  # dims without a name: those of one size vary together
            return self._symbol(f"size_{size}", spec.min or 0, spec.max)
        if isinstance(spec, str):
            return self._symbol(spec, 0, None)
        if not isinstance(spec, torch.export.Dim):
            raise WeftError(
                f"dynamic_shapes: {place} is {type(spec).__name__} {spec!r}",
                help='give a torch.export.Dim("batch"), or None for a size that does not vary',
            )
        root, function = getattr(spec, "root", spec), getattr(spec, "fn", int)
        offset = int(function(0))
        most = root.max if isinstance(root.max, int) else None
        found = self._symbol(root.__name__, int(root.min), most)
        return Extent(found.symbol, int(function(1)) - offset, offset)

    def _symbol(self, name: str, least: int, most: int | None) -> Extent:
        symbol = self.symbols.setdefault(name, SizeSymbol(name, least, most))
        if (symbol.least, symbol.most) != (least, most):
            raise WeftError(
                f"dynamic_shapes: two Dims are called {name!r}, with the ranges "
                f"{range_of(symbol)} and {range_of(SizeSymbol(name, least, most))}",
                help="use one Dim for sizes that are equal, and other names for other sizes",
            )
        return Extent([*self.symbols].index(name), 1, 0)

    def leaf(self, leaf: Any, specs: Any, name: str) -> LeafExtents:
        """The dims of one tensor that vary."""
        import torch

        if specs is None:
            return {}
        if not isinstance(leaf, torch.Tensor):
            raise WeftError(
                f"dynamic_shapes: {name} is a {type(leaf).__name__}, not a tensor",
                help="give None for it: every value is compiled for",
            )
        if not isinstance(specs, Mapping):
            specs = dict(enumerate(specs))
            if len(specs) != leaf.dim():
                raise WeftError(
                    f"dynamic_shapes: {len(specs)} dims for {name}, which has {leaf.dim()}",
                    help="give one for each dim, or a dict from dims to Dims",
                )
        extents: LeafExtents = {}
        for dim, one in specs.items():
            if not -leaf.dim() <= dim < leaf.dim():
                raise WeftError(
                    f"dynamic_shapes: {name} has no dim {dim}",
                    help=f"its dims are 0 to {leaf.dim() - 1}",
                )
            extent = self.extent(one, leaf.shape[dim], f"dim {dim} of {name}")
            if extent is not None:
                extents[dim % leaf.dim()] = extent
        return extents

    def walk(self, value: Any, specs: Any, name: str) -> list[tuple[LeafExtents, str]]:
        """The extents of all leaves of an argument, in the order of PyTorch's pytrees."""
        from torch.utils._pytree import SUPPORTED_NODES, _get_node_type, keystr

        kind = _get_node_type(value)
        if kind not in SUPPORTED_NODES:
            return [(self.leaf(value, specs, name), name)]
        children, _ = SUPPORTED_NODES[kind].flatten_fn(value)
        keyed = SUPPORTED_NODES[kind].flatten_with_keys_fn
        paths = [key for key, _ in keyed(value)[0]] if keyed is not None else range(len(children))
        if specs is None:
            inner: list[Any] = [None] * len(children)
        elif isinstance(specs, Mapping):
            inner = [specs.get(getattr(key, "key", getattr(key, "idx", key))) for key in paths]
        else:
            inner = [*specs]
        if len(inner) != len(children):
            raise WeftError(
                f"dynamic_shapes: {len(inner)} entries for {name}, which has {len(children)}",
                help="give one for each, None for those whose sizes do not vary",
            )
        words = [keystr((key,)) if not isinstance(key, int) else f"[{key}]" for key in paths]
        parts = [
            self.walk(child, one, f"{name}{word}")
            for child, one, word in zip(children, inner, words, strict=True)
        ]
        return [leaf for part in parts for leaf in part]


def named_shapes(
    dynamic_shapes: Any, args: Sequence[Any], kwargs: Mapping[str, Any], parameters: Sequence[str]
) -> CallShapes:
    """The symbols of `dynamic_shapes`: a dict by names of arguments, or a tuple by position."""
    names = [*parameters[: len(args)], *[f"args[{n}]" for n in range(len(parameters), len(args))]]
    words = [*names, *kwargs]
    if isinstance(dynamic_shapes, Mapping):
        unknown = [name for name in dynamic_shapes if name not in words]
        if unknown:
            raise WeftError(
                f"dynamic_shapes: no argument {unknown[0]!r}",
                help=f"arguments are {', '.join(words)}",
            )
        specs = [dynamic_shapes.get(word) for word in words]
    elif isinstance(dynamic_shapes, tuple | list):
        if len(dynamic_shapes) != len(words):
            raise WeftError(
                f"dynamic_shapes: {len(dynamic_shapes)} entries for {len(words)} arguments",
                help="give one for each, None for those whose sizes do not vary",
            )
        specs = [*dynamic_shapes]
    else:
        raise WeftError(
            f"dynamic_shapes is a {type(dynamic_shapes).__name__}",
            help='give {"x": {0: torch.export.Dim("batch")}}, or a tuple by position',
        )
    reader = _Reader()
    leaves: list[tuple[LeafExtents, str]] = []
    for value, one, word in zip((*args, *kwargs.values()), specs, words, strict=True):
        leaves += reader.walk(value, one, word)
    symbols = tuple(reader.symbols.values())
    return CallShapes(symbols, tuple([e for e, _ in leaves]), tuple([n for _, n in leaves]))
