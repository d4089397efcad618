"""Dataclasses whose methods are written on first use, so that a program starts sooner.

`dataclasses.dataclass` compiles six methods a class at import, about a millisecond; most classes
of a process are never compared, and many never made. Here the fields and slots are those of the
standard library, and so `replace`, `fields`, `asdict` and patterns work; `__init__`, `__eq__` and
`__hash__` are compiled when they are first called. Classes that traced PyTorch code makes, such as
`P`, are of the standard library, which TorchDynamo knows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from reprlib import recursive_repr
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # type checkers know that one
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        eq: bool = True,
        init: bool = True,
        slots: bool = False,
        weakref_slot: bool = False,
    ) -> Any:
        """The decorator of `dataclasses`, with those of its options that are used here."""

        def declare(cls: type) -> type:
            own = vars(cls)
            record: Any = _with_fields(cls, slots=slots, weakref_slot=weakref_slot)
            record.__dataclass_params__.frozen = frozen  # for plain subclasses
            if init:
                _add(record, "__init__", _on_first_call(record, "__init__", _init_text(frozen)))
            if eq:
                _add(record, "__eq__", _on_first_call(record, "__eq__", _eq_text))
                if own.get("__hash__") is None:  # Python's own None where a class defines __eq__
                    record.__hash__ = (
                        _on_first_call(record, "__hash__", _hash_text) if frozen else None
                    )
            _add(record, "__repr__", _repr)
            if frozen:
                _freeze(record, slots=slots)
            return record

        return declare if cls is None else declare(cls)


def _with_fields(cls: type, *, slots: bool, weakref_slot: bool) -> type:
    """The class with the fields of the standard library, and none of its methods."""
    bare = dataclasses.dataclass(
        init=False, repr=False, eq=False, slots=slots, weakref_slot=weakref_slot
    )
    held = [vars(base).get("__dataclass_params__") for base in cls.__mro__[1:]]
    frozen = [params for params in held if params is not None and params.frozen]
    for params in frozen:  # the standard library would freeze this class, too, by methods
        params.frozen = False
    try:
        return bare(cls)
    finally:
        for params in frozen:
            params.frozen = True


def _add(cls: type, name: str, method: object) -> None:
    """Give a class a method, unless it has one of its own."""
    if name not in cls.__dict__:
        setattr(cls, name, method)


def _on_first_call(cls: type, name: str, text: Callable[[type, dict[str, Any]], str]) -> Any:
    """A method that, when it is called, is compiled and takes its own place."""

    def first(self: object, *args: object, **kwargs: object) -> Any:
        scope: dict[str, Any] = {"__name__": cls.__module__}
        exec(text(cls, scope), scope)
        method = scope[name]
        method.__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, method)
        return method(self, *args, **kwargs)

    return first


def _fields(cls: type) -> tuple[Field[Any], ...]:
    return dataclasses.fields(cls)


def _init_text(frozen: bool) -> Callable[[type, dict[str, Any]], str]:
    """The text of `__init__`, whose scope gets the defaults."""

    def text(cls: type, scope: dict[str, Any]) -> str:
        scope["_set"], scope["_missing"] = object.__setattr__, MISSING
        takes, lines = ["self"], []
        for field in _fields(cls):
            name, value = field.name, field.name
            if field.default_factory is not MISSING:
                scope[f"_new_{name}"] = field.default_factory
                value = f"_new_{name}() if {name} is _missing else {name}"
                value = value if field.init else f"_new_{name}()"
                takes += [f"{name}=_missing"] if field.init else []
            elif field.default is not MISSING:
                scope[f"_default_{name}"] = field.default
                value = value if field.init else f"_default_{name}"
                takes += [f"{name}=_default_{name}"] if field.init else []
            elif field.init:
                takes.append(name)
            else:
                continue
            lines.append(
                _assignment(cls, name, value, scope) if frozen else f"self.{name} = {value}"
            )
        lines += ["self.__post_init__()"] if hasattr(cls, "__post_init__") else []
        return f"def __init__({', '.join(takes)}):\n " + "\n ".join(lines or ["pass"])

    return text


def _assignment(cls: type, name: str, value: str, scope: dict[str, Any]) -> str:
    """The assignment of a field of a frozen record: by its slot, which need not be looked up."""
    slot = getattr(cls, name, None)
    if not isinstance(slot, MemberDescriptorType):
        return f"_set(self, {name!r}, {value})"
    scope[f"_set_{name}"] = slot.__set__
    return f"_set_{name}(self, {value})"


def _eq_text(cls: type, scope: dict[str, Any]) -> str:
    """The text of `__eq__`: the same class, and the same values."""
    names = [field.name for field in _fields(cls) if field.compare]
    one, other = ("".join(f"{who}.{name}, " for name in names) for who in ("self", "other"))
    return (
        "def __eq__(self, other):\n"
        " if other.__class__ is not self.__class__: return NotImplemented\n"
        f" return ({one}) == ({other})"
    )


def _hash_text(cls: type, scope: dict[str, Any]) -> str:
    """The text of `__hash__`: of the values that are compared."""
    names = [f.name for f in _fields(cls) if (f.compare if f.hash is None else f.hash)]
    return f"def __hash__(self): return hash(({''.join(f'self.{name}, ' for name in names)}))"


@recursive_repr()
def _repr(self: Any) -> str:
    shown = [f"{f.name}={getattr(self, f.name)!r}" for f in _fields(type(self)) if f.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _freeze(cls: Any, *, slots: bool) -> None:
    """Let no field be assigned or deleted after `__init__`."""
    names = frozenset(cls.__dataclass_fields__)

    def __setattr__(self: object, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: object, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__
    if slots:
        _add(cls, "__getstate__", _get_state)
        _add(cls, "__setstate__", _set_state)


def _get_state(self: Any) -> list[object]:
    """The state of a frozen instance for `copy` and `pickle`."""
    return [getattr(self, field.name) for field in _fields(type(self))]


def _set_state(self: Any, state: list[object]) -> None:
    for field, value in zip(_fields(type(self)), state, strict=True):
        object.__setattr__(self, field.name, value)
