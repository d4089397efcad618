"""Colocated Python: functions and objects that run in the processes that hold the shards.

A call returns at once, with arrays that become ready when the function has run. The calls of one
thread run in order; those of different threads run concurrently. With workers, every worker calls
the function, and each runs it on its own shards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, update_wrapper
from typing import Any, TypeAlias

from weft.array.array import Array, ArraySpec
from weft.array.context import CONTEXTS
from weft.array.put import put
from weft.errors import WeftError
from weft.mesh import Mesh, P
from weft.native.forks import after_fork
from weft.records import dataclass

Tree: TypeAlias = Any  # nested tuples, lists and dicts of arrays
Specs: TypeAlias = tuple[ArraySpec, ...]
_SHOWN = 4  # differing specs that an error lists


class _Queues(threading.local):
    """The queue of the calls of this thread."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """A new queue: a forked child has none of its parent's threads."""
        self.queue = ThreadPoolExecutor(1, "weft-colocated")


_QUEUES = _Queues()
after_fork(_QUEUES.renew)


@dataclass(frozen=True, slots=True)
class Specialization:
    """Call options of a function, each set at most once."""

    in_specs: Tree = None
    out_specs_fn: Callable[..., Tree] | None = None
    mesh: Mesh | None = None


class ColocatedFunction:
    """A function of arrays, run where their shards are."""

    def __init__(self, fn: Callable[..., Any], fixed: Specialization | None = None) -> None:
        self.fn, self.fixed = fn, fixed or Specialization()
        self.results: dict[object, tuple[Tree, Specs]] = {}  # by the specs of the arguments
        self.lock = threading.Lock()
        update_wrapper(self, fn, updated=())

    def specialize(
        self,
        in_specs: Tree = None,
        out_specs_fn: Callable[..., Tree] | None = None,
        mesh: Mesh | None = None,
    ) -> ColocatedFunction:
        """The function with specs of its arguments, its results, or with its devices fixed.

        `out_specs_fn` takes the specs of the arguments (`array.spec`) and returns those of the
        results; without it the first call waits, to find them.
        """
        new = {"in_specs": in_specs, "out_specs_fn": out_specs_fn, "mesh": mesh}
        before = {name: getattr(self.fixed, name) for name in new}
        for name, value in new.items():
            if value is not None and before[name] is not None:
                raise WeftError(f"{name} is fixed already", help="specialize the function once")
        fixed = {name: before[name] if new[name] is None else new[name] for name in new}
        return ColocatedFunction(self.fn, Specialization(**fixed))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function on arrays; the results are arrays that may not be ready yet."""
        leaves = [*_leaves((args, kwargs), self._name)]
        for leaf in leaves:
            leaf.check_alive()
        mesh = self._mesh(leaves)
        self._check_arguments(args, kwargs)
        key = (_shape((args, kwargs)), tuple([leaf.spec for leaf in leaves]))
        known = self.results.get(key) or self._promised(key, args, kwargs, mesh)
        work = partial(self._run, leaves, args, kwargs, mesh)
        if known is None:
            made = _QUEUES.queue.submit(work).result()  # ordered after earlier calls
            with self.lock:
                self.results[key] = made, tuple([leaf.spec for leaf in _leaves(made, self._name)])
            return made
        tree, specs = known
        context = CONTEXTS.here()
        arrays = [Array.of(None, spec) for spec in specs]
        for array in arrays:
            array.context = context
        _QUEUES.queue.submit(partial(self._resolve, work, tree, arrays))
        return _filled(tree, iter(arrays))

    @property
    def _name(self) -> str:
        return getattr(self.fn, "__name__", "a function")

    def _mesh(self, leaves: Sequence[Array]) -> Mesh:
        """The devices of all arguments."""
        meshes = [*dict.fromkeys([leaf.mesh for leaf in leaves])]
        fixed = self.fixed.mesh
        if not meshes and fixed is None:
            raise WeftError(
                f"{self._name} has no array as argument, so its devices are unknown",
                help=f"fix them: {self._name}.specialize(mesh=...)",
            )
        wanted = fixed or meshes[0]
        devices = [m.devices().reshape(-1).tolist() for m in meshes]
        if any(one != wanted.devices().reshape(-1).tolist() for one in devices):
            raise WeftError(
                f"the arguments of {self._name} are on different devices: "
                f"{', '.join(map(str, [*([fixed] if fixed else []), *meshes]))}",
                help="put all of them on one mesh: weft.put(array, sharding, mesh)",
            )
        return wanted

    def _check_arguments(self, args: Any, kwargs: Any) -> None:
        if self.fixed.in_specs is None:
            return
        wanted, (specs, named) = self.fixed.in_specs, _specs((args, kwargs), self._name)
        if specs != wanted or named:
            raise WeftError(
                f"{self._name} is specialized for other arguments: "
                f"{_mismatch('argument', wanted, (*specs, named) if named else specs)}",
                help="call it with arrays of these specs, or specialize the function anew",
            )

    def _promised(
        self, key: object, args: Any, kwargs: Any, mesh: Mesh
    ) -> tuple[Tree, Specs] | None:
        """The results as `out_specs_fn` gives them."""
        if self.fixed.out_specs_fn is None:
            return None
        given, named = _specs((args, kwargs), self._name)
        tree = self.fixed.out_specs_fn(*given, **named)
        specs = tuple(_flat(tree))
        if not all(type(spec) is ArraySpec for spec in specs):
            raise WeftError(
                f"out_specs_fn of {self._name} gives {_text(tree)}",
                help="it must return specs, as `array.spec` has one",
            )
        with self.lock:
            self.results[key] = tree, specs
        return tree, specs

    def _run(self, leaves: Sequence[Array], args: Any, kwargs: Any, mesh: Mesh) -> Tree:
        """Call the function when its arguments are ready; an error of one is raised."""
        for leaf in leaves:
            leaf.settle()  # one deleted after the call has its metadata still
        made = self.fn(*args, **kwargs)
        return _mapped(made, lambda leaf: self._on_devices(leaf, mesh))

    def _on_devices(self, leaf: Any, mesh: Mesh) -> Array:
        if type(leaf) is not Array:
            leaf = put(leaf, mesh=mesh)  # the same value on all devices
        here, there = leaf.mesh.devices().reshape(-1), mesh.devices().reshape(-1)
        if here.tolist() != there.tolist():
            raise WeftError(
                f"{self._name} returns an array on {leaf.mesh}, and its arguments are on {mesh}",
                help="results must be on the devices of the arguments, in the same order",
            )
        made: Array = leaf
        return made

    def _resolve(self, work: Callable[[], Tree], tree: Tree, arrays: Sequence[Array]) -> None:
        """Run, and complete the arrays that were promised."""
        try:
            output = work()
            results = [*_leaves(output, self._name)]
            if _shape(output) != _shape(tree) or [a.spec for a in results] != [
                a.spec for a in arrays
            ]:
                wanted = _filled(tree, iter([a.spec for a in arrays]))
                raise WeftError(
                    f"{self._name} returned other results than its specs for these arguments: "
                    f"{_mismatch('result', wanted, _specs(output, self._name))}",
                    help="results must have the same structure, shapes, types and shardings",
                )
            for promised, array in zip(arrays, results, strict=True):
                promised.resolve(array.wait().stacked)
        except BaseException as error:  # noqa: BLE001  # raised where a result is read
            for promised in arrays:
                if not promised.is_ready:
                    promised.fail(error)


class ColocatedObject:
    """An object in the processes of its arrays, made at the first call of a method."""

    def __init__(self, cls: type, args: Any, kwargs: Any) -> None:
        self._make = partial(cls, *args, **kwargs)
        self._class, self._lock = cls, threading.Lock()
        self._made: list[Any] = []
        self._failed: BaseException | None = None
        self._methods: dict[str, ColocatedFunction] = {}

    def __getattr__(self, name: str) -> ColocatedFunction:
        if name.startswith("_") or not callable(getattr(self._class, name, None)):
            raise AttributeError(f"{self._class.__name__} has no method {name}")
        with self._lock:
            function = self._methods.get(name)
            if function is None:
                method = getattr(self._class, name)
                call = update_wrapper(partial(self._call, method), method)
                function = self._methods[name] = ColocatedFunction(call)
        return function

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return method(self._instance(), *args, **kwargs)

    def _instance(self) -> Any:
        """The object, made once; an exception of its constructor is raised by every call."""
        with self._lock:
            if self._failed is not None:
                raise self._failed
            if not self._made:
                try:
                    self._made.append(self._make())
                except BaseException as error:
                    self._failed = error
                    raise
            return self._made[0]


class ColocatedClass:
    """A class whose objects are colocated."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        update_wrapper(self, cls, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> ColocatedObject:
        """An object that is made where it is used first."""
        return ColocatedObject(self.cls, args, kwargs)


def colocated(fn: Any) -> Any:
    """Run a function, or the methods of a class, in the processes that hold the shards.

    Arguments are arrays on one mesh, or nested tuples, lists and dicts of them. The first call for
    arguments of some specs waits, and finds the specs of the results; later ones return at once.
    """
    return ColocatedClass(fn) if isinstance(fn, type) else ColocatedFunction(fn)


# Trees


def _flat(tree: Tree) -> Iterator[Any]:
    match tree:
        case None:
            return
        case dict():
            for name in tree:
                yield from _flat(tree[name])
        case tuple() | list():
            for part in tree:
                yield from _flat(part)
        case _:
            yield tree


def _leaves(tree: Tree, name: str) -> Iterator[Array]:
    """The arrays of a tree."""
    for leaf in _flat(tree):
        if type(leaf) is not Array:
            raise WeftError(
                f"{name} is called with {type(leaf).__name__}, and takes arrays of Weft only",
                help="weft.put(value, sharding, mesh), or close over what is no array",
            )
        yield leaf


def _mapped(tree: Tree, change: Callable[[Any], Any]) -> Tree:
    match tree:
        case None:
            return None
        case dict():
            return {name: _mapped(part, change) for name, part in tree.items()}
        case list():
            return [_mapped(part, change) for part in tree]
        case tuple():
            return tuple([_mapped(part, change) for part in tree])
        case _:
            return change(tree)


def _filled(tree: Tree, leaves: Iterator[Any]) -> Tree:
    return _mapped(tree, lambda _: next(leaves))


def _specs(tree: Tree, name: str) -> Tree:
    """A tree with the specs of its arrays."""
    return _filled(tree, iter([leaf.spec for leaf in _leaves(tree, name)]))


def _shape(tree: Tree) -> str:
    """The structure of a tree, as a key."""
    return repr(_mapped(tree, lambda _: "*"))


def _mismatch(name: str, wanted: Tree, actual: Tree) -> str:
    """The leaves in which two trees of specs differ, or both trees if their structure does."""
    specs = [spec for spec in (*_flat(wanted), *_flat(actual)) if type(spec) is ArraySpec]
    text = partial(_text, on_devices=len({(spec.mesh, spec.here) for spec in specs}) > 1)
    if _shape(wanted) != _shape(actual):
        return f"expected {text(wanted)}, got {text(actual)}"
    pairs = zip(_paths(wanted, name), _flat(wanted), _flat(actual), strict=True)
    differences = [
        f"{path}: expected {text(a)}, got {text(b)}" for path, a, b in pairs if a is not b
    ]
    more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return "; ".join(differences[:_SHOWN]) + more


def _paths(tree: Tree, path: str) -> Iterator[str]:
    """`result[0]['loss']` for each leaf, in the order of `_flat`."""
    match tree:
        case None:
            return
        case dict():
            parts = [*tree.items()]
        case tuple() | list():
            parts = [*enumerate(tree)]
        case _:
            yield path
            return
    for key, part in parts:
        yield from _paths(part, f"{path}[{key!r}]")


def _text(tree: Tree, on_devices: bool = False) -> str:
    """A tree of specs: `(f32[8] P("x"), {'n': i32[] P()})`; with the devices of each if wanted."""
    match tree:
        case ArraySpec(sharding=split):
            spec = P(*split.dims, replicated=split.replicated, unreduced=split.unreduced)
            where = f" on devices {[*tree.places]} of {tree.mesh}" if on_devices else ""
            return f"{tree.dtype}{[*tree.shape]} {spec}{where}"
        case dict():
            parts = [f"{name!r}: {_text(part, on_devices)}" for name, part in tree.items()]
            return f"{{{', '.join(parts)}}}"
        case tuple() | list():
            listed = ", ".join([_text(part, on_devices) for part in tree])
            one = "," if len(tree) == 1 else ""
            return f"[{listed}]" if isinstance(tree, list) else f"({listed}{one})"
        case _:
            return repr(tree)
