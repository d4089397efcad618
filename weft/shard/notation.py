"""Notations of sharding rules, Shardy's and JAX's, and their application to an op."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from weft.errors import WeftError
from weft.ir.rule import Dims, Role, Rule, RuleFactor
from weft.ir.scan import split
from weft.ir.types import TensorType, Types
from weft.records import dataclass

_WRAPPED = re.compile(r"#sdy\.op_sharding_rule<(.*)>", re.S)
_SHARDY = re.compile(r"\((?P<operands>.*?)\)\s*->\s*\((?P<results>.*?)\)\s*(?P<rest>.*)", re.S)
_SETS = re.compile(r"(\w+)\s*=\s*\{([^{}]*)\}")
_TENSOR = re.compile(r"\s*\[([^\[\]]*)\]\s*")
_FACTOR = re.compile(r"z_\d+|[i-z]")
_WORD = re.compile(r"\s*(?:(\.\.\.)(\d*)|([A-Za-z]\w*)|\(([^()]*)\))\s*")
_NAME = re.compile(r"[A-Za-z]\w*")
_ROLES: dict[str, Role] = {
    "reduction": "reduction",
    "need_replication": "whole",
    "permutation": "permutation",
}
_EXAMPLE = 'write it like "([i, k], [k, j])->([i, j]) reduction={k}" or "i k, k j -> i j"'


@dataclass(frozen=True, slots=True)
class Tensor:
    """The factors of each dim of an operand or result, after those of `...`."""

    dims: tuple[tuple[str, ...], ...]
    batch: str | None = None  # the number of its `...`, if any


@dataclass(frozen=True, slots=True)
class Notation:
    """A parsed rule: factors by name, sizes optional."""

    text: str
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    roles: Mapping[str, Role] = field(default_factory=dict)
    blocked: frozenset[str] = frozenset()
    order: tuple[str, ...] | None = None  # the order of factors; None for that of appearance

    def __post_init__(self) -> None:
        tensors = (*self.operands, *self.results)
        used = [name for tensor in tensors for dim in tensor.dims for name in dim]
        for name in (*self.sizes, *self.roles, *self.blocked):
            if name not in used:
                self.refuse(f"factor {name} is in no operand and no result")
        for n, tensor in enumerate(tensors):
            names = [name for dim in tensor.dims for name in dim]
            for name in names:
                if names.count(name) > 1:
                    self.refuse(f"{self.place(n)} has factor {name} twice")

    def refuse(self, reason: str, help: str = _EXAMPLE) -> None:
        """The error for an invalid rule."""
        raise WeftError(f"sharding rule {self.text}: {reason}", help=help)

    def place(self, n: int) -> str:
        """`operand 0`, `result 1`."""
        count = len(self.operands)
        return f"operand {n}" if n < count else f"result {n - count}"

    def fit(self, operands: Types, results: Types) -> Rule:
        """The rule for operands and results of these types, or an error if it does not fit."""
        for word, mine, theirs in (
            ("operand", self.operands, operands),
            ("result", self.results, results),
        ):
            if len(mine) != len(theirs):
                self.refuse(
                    f"it is for {_count(len(mine), word)}, but the op has {len(theirs)}",
                    f"give one list of factors for each {word}",
                )
        return _Fitting(self, (*operands, *results)).rule()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class _Fitting:
    """The application of a notation to the shapes of one op."""

    def __init__(self, notation: Notation, types: Types) -> None:
        self.notation = notation
        self.shapes = [t.bounds if isinstance(t, TensorType) else () for t in types]
        self.types = types
        tensors = (*notation.operands, *notation.results)
        self.dims = [self.named(n, tensor) for n, tensor in enumerate(tensors)]
        self.sizes = dict(notation.sizes)

    def named(self, n: int, tensor: Tensor) -> tuple[tuple[str, ...], ...]:
        """The factors of each dim; those of `...` get names that no user can write."""
        rank, count = len(self.shapes[n]), len(tensor.dims)
        if (tensor.batch is None and rank != count) or rank < count:
            self.notation.refuse(
                f"{self.notation.place(n)} has {_count(count, 'dim')}, but is {self.types[n]}",
                "give one factor, or one group of factors, for each dim",
            )
        # Dots are in no factor's name, so these cannot clash.
        batch = tuple((f"...{tensor.batch}_{d}",) for d in range(rank - count))
        return batch + tensor.dims if tensor.batch is not None else tensor.dims

    def rule(self) -> Rule:
        self.check_batches()
        names = self.order()
        self.find_sizes(names)
        self.check_groups()
        index = {name: n for n, name in enumerate(names)}
        factors = tuple(self.factor(name) for name in names)
        mapped: list[Dims] = [
            tuple(tuple(index[name] for name in dim) for dim in dims) for dims in self.dims
        ]
        count = len(self.notation.operands)
        return Rule(factors, tuple(mapped[:count]), tuple(mapped[count:]))

    def order(self) -> list[str]:
        used = dict.fromkeys(name for dims in self.dims for dim in dims for name in dim)
        given = self.notation.order
        return list(used) if given is None else [name for name in given if name in used]

    def factor(self, name: str) -> RuleFactor:
        role = self.notation.roles.get(name, "pass")
        # Neither notation can say how partial results combine: they are sums, as in Shardy.
        combine = "add" if role == "reduction" else None
        return RuleFactor(self.sizes[name], role, combine, name in self.notation.blocked)  # type: ignore[arg-type]

    def check_batches(self) -> None:
        """Check that every `...` of one group has the same rank."""
        seen: dict[str, tuple[int, int]] = {}
        for n, tensor in enumerate((*self.notation.operands, *self.notation.results)):
            if tensor.batch is None:
                continue
            count = len(self.dims[n]) - len(tensor.dims)
            first, expected = seen.setdefault(tensor.batch, (n, count))
            if count != expected:
                place = self.notation.place
                self.notation.refuse(
                    f"... is {expected} dims in {place(first)}, but {count} in {place(n)}",
                    "number the groups of batch dims that differ: ...0, ...1",
                )

    def find_sizes(self, names: list[str]) -> None:
        """Infer sizes from single-factor dims, then from groups with one unknown size."""
        found = self.alone()
        for name, sizes in found.items():
            self.sizes[name] = self.one_size(name, sizes)
        # Each round fixes at least one size or none ever will: as many rounds as there are factors.
        for _ in names:
            for n, dims in enumerate(self.dims):
                for dim, size in zip(dims, self.shapes[n], strict=True):
                    unknown = [name for name in dim if name not in self.sizes]
                    known = math.prod(self.sizes[name] for name in dim if name in self.sizes)
                    if len(unknown) == 1 and known and size % known == 0:
                        self.sizes[unknown[0]] = size // known
        for name in names:
            if name not in self.sizes:
                self.notation.refuse(
                    f"the size of factor {name} does not follow from the shapes",
                    f"give it: {{{name}=...}} in Shardy's notation, or {name}=... as an argument",
                )

    def alone(self) -> dict[str, dict[int, str]]:
        """For each factor that is a whole dim, its sizes, each with an operand or result."""
        by_factor: dict[str, dict[int, str]] = {}
        for n, dims in enumerate(self.dims):
            for d, (dim, size) in enumerate(zip(dims, self.shapes[n], strict=True)):
                if len(dim) == 1:
                    place = f"{self.notation.place(n)} dim {d}"
                    by_factor.setdefault(dim[0], {}).setdefault(size, place)
        return by_factor

    def one_size(self, name: str, sizes: dict[int, str]) -> int:
        """The size of a factor of several dims; the smallest where they may differ."""
        shown = ", ".join(f"{place} is {size}" for size, place in sizes.items())
        if (given := self.sizes.get(name)) is not None:
            if given not in sizes and given != 1:  # size 1 marks an unsplit factor in Shardy
                self.notation.refuse(f"factor {name} has size {given}, but {shown}", "correct it")
            return given
        role = self.notation.roles.get(name, "pass")
        if len(sizes) > 1 and role in ("pass", "reduction"):
            what = f"batch dim {name[-1]}" if name.startswith("...") else f"factor {name}"
            self.notation.refuse(
                f"{what} has two sizes: {shown}",
                "give the dims factors of their own; only a permutation or need_replication "
                "factor may differ from dim to dim",
            )
        return min(sizes)

    def check_groups(self) -> None:
        """Check that the factors of a dim multiply to its size."""
        for n, dims in enumerate(self.dims):
            for d, (dim, size) in enumerate(zip(dims, self.shapes[n], strict=True)):
                if len(dim) < 2:
                    continue
                sizes = [self.sizes[name] for name in dim]
                shown = ", ".join(f"{name}={self.sizes[name]}" for name in dim)
                where = f"{self.notation.place(n)} dim {d} is {size}"
                if math.prod(sizes) != size:
                    self.notation.refuse(
                        f"{where}, but its factors make {math.prod(sizes)} ({shown})",
                        "the sizes of the factors of a dim must multiply to the size of the dim",
                    )
                if 1 in sizes:
                    self.notation.refuse(
                        f"{where} and has a factor of size 1 beside others ({shown})",
                        "leave the factor out of that dim",
                    )


# Parsing


def parse_rule(text: str, operands: Types, results: Types, **options: int | Sequence[str]) -> Rule:
    """The rule of a text in either notation, for an op on these types."""
    return read_notation(text, **options).fit(operands, results)


def read_notation(text: str, **options: int | Sequence[str]) -> Notation:
    """Parse a rule; roles and sizes as options are for JAX's notation only."""
    if wrapped := _WRAPPED.fullmatch(text.strip()):
        text = wrapped[1]
    text = " ".join(text.split())
    if "[" not in text and "()" not in text:
        return _read_jax(text, options)
    if options:
        raise WeftError(
            f"sharding rule {text}: {', '.join(options)} beside Shardy's notation",
            help="write sizes and roles into the text: {k=16} reduction={k}",
        )
    return _read_shardy(text)


def _read_shardy(text: str) -> Notation:
    match = _SHARDY.fullmatch(text)
    if match is None:
        raise WeftError(f"sharding rule {text}: unknown notation", help=_EXAMPLE)
    operands = _shardy_tensors(text, match["operands"])
    results = _shardy_tensors(text, match["results"])
    # Shardy prints `custom` behind a rule that users gave; every rule read here is one.
    rest = match["rest"].strip().removesuffix("custom").rstrip().removesuffix(",").strip()
    sizes: dict[str, int] = {}
    if rest.startswith("{"):
        listed, _, rest = rest[1:].partition("}")
        sizes = _sizes(text, listed)
    roles: dict[str, Role] = {}
    blocked: frozenset[str] = frozenset()
    for word, listed in _SETS.findall(rest):
        names = [name.strip() for name in listed.split(",") if name.strip()]
        if word == "blocked_propagation":
            blocked = frozenset(names)
        else:
            _give_role(text, word, names, roles)
    if left := _SETS.sub("", rest).strip():
        raise WeftError(f"sharding rule {text}: {left!r} is not understood", help=_EXAMPLE)
    used = {name for t in (*operands, *results) for dim in t.dims for name in dim}
    # Propagation visits factors in this order: Shardy's results depend on it.
    order = tuple(sorted(used, key=_shardy_index))
    return Notation(text, operands, results, sizes, roles, blocked, order)


def _shardy_tensors(text: str, side: str) -> tuple[Tensor, ...]:
    tensors = []
    for part in split(side):
        match = _TENSOR.fullmatch(part)
        if match is None:
            raise WeftError(f"sharding rule {text}: {part!r} is not a list of dims", help=_EXAMPLE)
        dims = [dim.strip() for dim in match[1].split(",")] if match[1].strip() else []
        tensors.append(Tensor(tuple(_shardy_dim(text, dim) for dim in dims)))
    return tuple(tensors)


def _shardy_dim(text: str, dim: str) -> tuple[str, ...]:
    names = tuple(_FACTOR.findall(dim))
    if not names or "".join(names) != dim:
        raise WeftError(
            f"sharding rule {text}: {dim!r} names no factors",
            help="factors are i, j, ..., z, z_1, z_2, ...; a dim has one or more, as in [ij, k]",
        )
    return names


def _shardy_index(name: str) -> int:
    """Shardy's index of a factor name."""
    # i to z are 0 to 17, and z_1 is the next.
    return ord(name) - ord("i") if len(name) == 1 else 17 + int(name[2:])


def _sizes(text: str, listed: str) -> dict[str, int]:
    sizes = {}
    for part in split(listed):
        name, equals, size = part.partition("=")
        if not equals or not size.strip().isdigit():
            raise WeftError(
                f"sharding rule {text}: {part!r} is not a size", help="write {i=8, j=4}"
            )
        sizes[name.strip()] = int(size)
    return sizes


def _give_role(text: str, word: str, names: Iterable[str], roles: dict[str, Role]) -> None:
    role = _ROLES.get(word)
    if role is None:
        near = difflib.get_close_matches(word, [*_ROLES, "blocked_propagation"], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        known = ", ".join([*_ROLES, "blocked_propagation"])
        raise WeftError(
            f"sharding rule {text}: unknown role {word!r}", help=f"{hint}known: {known}"
        )
    for name in names:
        if name in roles:
            raise WeftError(
                f"sharding rule {text}: factor {name} has two roles",
                help="a factor is reduction, need_replication or permutation, or none of these",
            )
        roles[name] = role


def _read_jax(text: str, options: Mapping[str, int | Sequence[str]]) -> Notation:
    left, arrow, right = text.partition("->")
    if not arrow or "->" in right:
        raise WeftError(f"sharding rule {text}: there must be one ->", help=_EXAMPLE)
    roles: dict[str, Role] = {}
    sizes: dict[str, int] = {}
    for name, option in options.items():
        if isinstance(option, int):
            sizes[name] = option
        else:
            names = (option,) if isinstance(option, str) else option
            _give_role(text, name.removesuffix("_factors"), names, roles)
    return Notation(text, _jax_tensors(text, left), _jax_tensors(text, right), sizes, roles)


def _jax_tensors(text: str, side: str) -> tuple[Tensor, ...]:
    return tuple(_jax_tensor(text, part) for part in side.split(","))


def _jax_tensor(text: str, part: str) -> Tensor:
    dims: list[tuple[str, ...]] = []
    batch = None
    position = 0
    part = part.strip()
    while position < len(part):
        match = _WORD.match(part, position)
        if match is None or (match[1] and position):
            raise WeftError(
                f"sharding rule {text}: {part[position:]!r} is not understood",
                help="dims are names, groups like (i j), and ... for leading batch dims",
            )
        if match[1]:
            batch = str(int(match[2] or 0))
        else:
            dims.append((match[3],) if match[3] else _jax_group(text, match[4]))
        position = match.end()
    return Tensor(tuple(dims), batch)


def _jax_group(text: str, inside: str) -> tuple[str, ...]:
    names = tuple(inside.split())
    if len(names) < 2 or not all(_NAME.fullmatch(name) for name in names):
        raise WeftError(
            f"sharding rule {text}: ({inside}) is not a group",
            help="a group has two factors or more",
        )
    return names
