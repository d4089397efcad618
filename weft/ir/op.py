"""The declaration of an op: its fields, its types, its rule, its reference and its work."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Protocol, TypeVar, cast, dataclass_transform, get_type_hints

from weft.errors import WeftError
from weft.ir.attrs import Attrs, Codec, codec_of
from weft.ir.intern import InternTable
from weft.ir.rule import Rule
from weft.ir.types import Array, TensorType, Type, Types
from weft.ir.work import Work
from weft.mesh import Mesh
from weft.records import dataclass

OpClass = TypeVar("OpClass", bound="type[Op]")
Steps = Generator[Any, Any, tuple[Any, ...]]  # a coroutine that yields at collectives


@dataclass(frozen=True, slots=True)
class Body:
    """The signature of a region: its types, and its combiners if it is a reduction's.

    `combiners[i]` is the name of the op if result i is that op of argument i and argument n + i.
    """

    args: Types
    results: Types
    combiners: tuple[str | None, ...] = ()


class RegionCall(Protocol):
    """A region that a reference may run."""

    @property
    def combiners(self) -> tuple[str | None, ...]:
        """The combiners of its body."""
        ...

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        """Run the region once on arrays of its argument types."""
        ...

    def each(self, *arrays: Array) -> tuple[Array, ...]:
        """Run a scalar region elementwise on arrays of one shape."""
        ...

    def run(self, *values: Any) -> Steps:
        """Run the region once as a coroutine that yields at collectives (for control flow)."""
        ...


class Evaluation(Protocol):
    """The interpreter's interface for the references of control ops."""

    device: tuple[int, int]  # replica id and partition id

    @property
    def meshes(self) -> Mapping[str, Mesh]:
        """The meshes of the module, by name."""
        ...

    def call(self, function: str, *values: Any) -> Steps:
        """Run a function of the module as a coroutine that yields at collectives."""
        ...

    def parallel(
        self, programs: tuple[tuple[str, ...], ...], infeed: tuple[str, ...], *values: Any
    ) -> tuple[Any, ...]:
        """Run functions side by side, one a device, rows of replicas by columns of partitions."""
        ...

    def everywhere(self, region: RegionCall, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Run a region on one device per row of arguments; the results of each."""
        ...

    def feed(self) -> str:
        """The name of the function that computes the next infeed values."""
        ...

    def channel(self, key: tuple[object, ...]) -> list[tuple[Any, ...]]:
        """The queue of values sent under this key and not yet received, oldest first."""
        ...


class Interned(type):
    """Makes equal ops one object, so that equality is identity."""

    _known: ClassVar[InternTable[tuple[object, ...], Any]] = InternTable()
    slots: tuple[Any, ...] = ()  # the slot descriptor of each field

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        # The common case: every field by position.
        values = args if len(args) == len(cls.slots) and not kwargs else _bound(cls, args, kwargs)
        key = (cls, *values)
        found = Interned._known.get(key)
        if found is not None:
            return found
        made: Any = object.__new__(cls)  # type: ignore[arg-type]
        for slot, value in zip(cls.slots, values, strict=True):
            slot.__set__(made, value)
        return Interned._known.enter(key, made)


def _bound(cls: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[Any, ...]:
    """The fields' values from positional and keyword arguments."""
    names = cls.fields()
    values = dict(zip(names, args))  # noqa: B905  # there may be defaults
    if len(args) > len(names) or not kwargs.keys() <= set(names) - values.keys():
        raise TypeError(f"{cls.__name__} takes {names}, not {args} and {kwargs}")
    values |= kwargs
    missing = [name for name in names if name not in values and name not in cls.defaults]
    if missing:
        raise TypeError(f"{cls.__name__} is missing {', '.join(missing)}")
    return tuple([values[name] if name in values else cls.defaults[name] for name in names])


class _Codecs:
    """The attribute codecs of an op class, built on first use; most classes never need them."""

    def __get__(self, instance: object, cls: type[Op]) -> Mapping[str, Codec]:
        hints = get_type_hints(cls, include_extras=True)
        own = [name for name in cls.fields() if name not in ("out", "outs")]
        cls.codecs = {name: codec_of(hints[name]) for name in own}
        return cls.codecs


class Op(metaclass=Interned):
    """One op with its attributes. Two equal ops are the same object.

    Every op declares:
    - `infer(*operand_types) -> type(s)`: its result types; raises for operands that do not fit;
    - `rule(*operand_types) -> Rule`: its factors;
    - `reference(*arrays) -> array(s)`: its meaning in numpy; it never reads the rule;
    - `work(operand_types, result_types, bodies) -> Work`: its counted work with that of `bodies`.
    An op with regions gets the keyword `regions`: Bodies in `infer` and `rule`, RegionCalls in
    `reference`. A field `out` holds the result type (`outs` all of them) where the operands do not
    determine it; the other fields are MLIR attributes, by their MLIR names (`name_` for `name`).
    """

    __slots__ = ("__weakref__",)
    name: ClassVar[str]
    codecs: ClassVar[Mapping[str, Codec]] = _Codecs()  # type: ignore[assignment]
    defaults: ClassVar[Mapping[str, object]] = {}
    regions: ClassVar[int | None] = 0  # how many; None for any number
    pure: ClassVar[bool] = True  # deterministic and without side effects
    elementwise: ClassVar[bool] = False  # a scalar function applied to each element
    # Its reference is a generator with the keywords `regions` and `run` that yields at collectives.
    control: ClassVar[bool] = False
    # Its reference takes the operands of each device of a group, in order, and returns the results
    # of each; `groups(replicas, partitions, meshes)` lists the groups.
    collective: ClassVar[bool] = False
    # Not in StableHLO: written as a composite that calls its `decomposition`.
    composite: ClassVar[bool] = False
    assembly: ClassVar[str | None] = None  # the template of its line; see weft.ir.write
    __match_args__: ClassVar[tuple[str, ...]] = ()
    infer: ClassVar[Callable[..., Type | Types]]
    rule: ClassVar[Callable[..., Rule]]
    reference: ClassVar[Callable[..., Any]]
    work: ClassVar[Callable[..., Work]]

    def local(self, operands: Types, results: Types) -> Op:
        """The op on local types: fields that hold sizes take those of the shards."""
        if "out" in self.fields():
            return self.replace(out=results[0])
        return self.replace(outs=results) if "outs" in self.fields() else self

    def attributes(self) -> Attrs:
        """The fields as MLIR attributes, without those that are None."""
        pairs = [
            (n.rstrip("_"), c.write(getattr(self, n)))
            for n, c in self.codecs.items()
            if self._is_written(n)
        ]
        return tuple(sorted(pairs))

    def _is_written(self, name: str) -> bool:
        value = getattr(self, name)
        return value is not None and not (value is False and self.defaults.get(name) is False)

    def replace(self, **changes: object) -> Op:
        """The same op with some fields changed."""
        values = {name: getattr(self, name) for name in self.fields()}
        made: Op = type(self)(**(values | changes))
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), tuple(getattr(self, name) for name in self.fields())

    @classmethod
    def fields(cls) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return cls.__match_args__

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self.name} is interned and immutable: cannot change {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{self.name} is interned and immutable: cannot change {name}")

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.fields())
        return f"{self.name}({shown})"


_REQUIRED = ("infer", "rule", "reference", "work")


@dataclass_transform(frozen_default=True, eq_default=False)
def op(name: str) -> Callable[[OpClass], OpClass]:
    """Declare an op under its MLIR name; a declaration without a required method is an error.

    Each annotated field gets a slot, as in a frozen dataclass. `dataclass` itself is not used: it
    would compile the same methods anew for each of two hundred ops, at import time.
    """

    def declare(cls: OpClass) -> OpClass:
        for part in _REQUIRED:
            assert hasattr(cls, part), f"{name} declares no {part}"
        members = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
        annotated = members.get("__annotations__", {})
        # Annotations are texts here: `from __future__ import annotations`.
        names = tuple([n for n, t in annotated.items() if not str(t).startswith("ClassVar[")])
        # A slot and a class attribute cannot have one name.
        defaults = {n: members.pop(n) for n in names if n in members}
        members |= {"name": name, "__slots__": names, "__match_args__": names, "defaults": defaults}
        # A new class: slots are fixed when a class is created.
        made = Interned(cls.__name__, cls.__bases__, members)
        made.slots = tuple([vars(made)[n] for n in names])
        return cast(OpClass, made)

    return declare


def read_op(cls: type[Op], attributes: dict[str, str], results: Types) -> tuple[Op, Attrs]:
    """Build an op from attribute texts and result types; returns the unknown attributes too."""
    values: dict[str, object] = {}
    for name, codec in cls.codecs.items():
        text = attributes.get(name.rstrip("_"))
        if text is not None:
            values[name] = _decode(cls.name, name, codec, text)
        elif name not in cls.defaults:
            raise WeftError(
                f"{cls.name}: attribute {name!r} is missing", help=f"add {name} = ... to the op"
            )
    names = cls.fields()
    if "out" in names:
        if len(results) != 1 or not isinstance(results[0], TensorType):
            raise WeftError(f"{cls.name}: gives one tensor", help="give it one tensor result")
        values["out"] = results[0]
    if "outs" in names:
        values["outs"] = results
    known = {name.rstrip("_") for name in cls.codecs}
    rest = tuple(sorted((k, v) for k, v in attributes.items() if k not in known))
    return cls(**values), rest


def _decode(op_name: str, name: str, codec: Codec, text: str) -> object:
    try:
        return codec.read(text)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise WeftError(
            f"{op_name}: attribute {name} = {text[:80]} has the wrong form",
            help="see the op's entry in the StableHLO specification",
        ) from error


def infer(op: Op, operands: Types, regions: tuple[Body, ...] = ()) -> Types:
    """The result types of an op on operands of these types; an error if they do not fit."""
    return (_inferred if operands else _infer)(op, operands, regions)


def _infer(op: Op, operands: Types, regions: tuple[Body, ...]) -> Types:
    try:
        types = op.infer(*operands, regions=regions) if regions else op.infer(*operands)
    except TypeError as error:
        # `infer` has a parameter for each operand: Python's own check of their number is used.
        if "positional argument" not in str(error):
            raise
        raise WeftError(
            f"{op.name}: wrong number of operands: {len(operands)}",
            help="see the op's entry in the StableHLO specification",
        ) from error
    return types if isinstance(types, tuple) else (types,)


def rule(op: Op, operands: Types, regions: tuple[Body, ...] = ()) -> Rule:
    """The factor rule of an op on operands of these types."""
    return (_known_rule if operands else _rule)(op, operands, regions)


def _rule(op: Op, operands: Types, regions: tuple[Body, ...]) -> Rule:
    return op.rule(*operands, regions=regions) if regions else op.rule(*operands)


# Ops without operands are not cached: constants may be large.
_inferred = lru_cache(maxsize=131072)(_infer)
_known_rule = lru_cache(maxsize=131072)(_rule)
