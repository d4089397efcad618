"""Random programs with random meshes and annotations, to be propagated by Weft and by Shardy.

A program is the text of a module, drawn from a seed: the same seed, the same program.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

MESHES = (
    (("x", 8),),
    (("x", 2), ("y", 4)),
    (("x", 2), ("y", 2), ("z", 2)),
    (("x", 4), ("y", 8)),
    (("x", 2), ("y", 3)),
    (("x", 1), ("y", 4), ("z", 2)),
)
SIZES = (1, 2, 3, 4, 4, 6, 8, 8, 8, 12, 16, 16, 24, 32)
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Val:
    """A value of the program that is being written."""

    name: str
    shape: Shape
    dtype: str = "f32"

    @property
    def type(self) -> str:
        return tensor(self.shape, self.dtype)


def tensor(shape: Shape, dtype: str = "f32") -> str:
    """The text of a tensor type."""
    return f"tensor<{''.join(f'{size}x' for size in shape)}{dtype}>"


def types(*values: Val) -> str:
    return ", ".join(v.type for v in values)


def names(*values: Val) -> str:
    return ", ".join(v.name for v in values)


@dataclass
class Scope:
    """The values that can be read at a place, and the lines written there so far."""

    values: list[Val] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    manual: frozenset[str] = frozenset()  # axes that must not be named inside
    inside: int = 0  # the number of the manual computation around

    def inner(self, *args: Val) -> Scope:
        return Scope([*self.values, *args], [], self.manual, self.inside)


class Sharder:
    """Draws shardings on one mesh."""

    def __init__(
        self,
        rng: random.Random,
        name: str,
        axes: tuple[tuple[str, int], ...],
        *,
        inlined: bool = False,
    ) -> None:
        self.rng = rng
        self.name = name
        self.axes = axes
        shown = ", ".join(f'"{name}"={size}' for name, size in axes)
        self.text = "" if inlined else f"sdy.mesh @{name} = <[{shown}]>"
        self.reference = f"mesh<[{shown}]>" if inlined else f"@{name}"

    def parts(self, banned: frozenset[str] = frozenset()) -> list[str]:
        """Axes and sub-axes that do not overlap, in any order."""
        found = []
        for name, size in self.axes:
            if name in banned or self.rng.random() < 0.25:
                continue
            if size in (4, 8) and self.rng.random() < 0.25:
                cut = self.rng.choice([2] if size == 4 else [2, 4])
                pieces = [f'"{name}":(1){cut}', f'"{name}":({cut}){size // cut}']
                found.extend(p for p in pieces if self.rng.random() < 0.7)
            else:
                found.append(f'"{name}"')
        self.rng.shuffle(found)
        return found

    def draw(
        self, shape: Shape, banned: frozenset[str] = frozenset(), *, closed: float = 0.4
    ) -> str:
        """A sharding of a value of that shape, from `<` on."""
        rng = self.rng
        dims: list[list[str]] = [[] for _ in shape]
        left = []
        for axis in self.parts(banned):
            if dims and rng.random() < 0.7:
                chosen = rng.choice(dims)
                if any(other.split(":")[0] == axis.split(":")[0] for other in chosen):
                    left.append(axis)  # neighbours that could be merged are refused
                else:
                    chosen.append(axis)
            else:
                left.append(axis)
        all_closed = rng.random() < closed
        shown = []
        for dim in dims:
            is_open = not all_closed and rng.random() < 0.6
            priority = ""
            if (dim or is_open) and rng.random() < 0.12:
                priority = f"p{rng.randrange(4)}"
            shown.append("{" + ", ".join([*dim, *(["?"] if is_open else [])]) + "}" + priority)
        rest = self.rest(left)
        return f"<{self.reference}, [{', '.join(shown)}]{rest}>"

    def rest(self, left: list[str]) -> str:
        rng = self.rng
        order = [name for name, _ in self.axes]
        left.sort(key=lambda a: (order.index(a.split('"')[1]), _before(a)))
        if not left or rng.random() < 0.7:
            return ""
        whole = [
            a for n, a in enumerate(left) if n == 0 or a.split(":")[0] != left[n - 1].split(":")[0]
        ]
        word = "unreduced" if rng.random() < 0.12 else "replicated"
        return f", {word}={{{', '.join(whole)}}}"


def _before(axis: str) -> int:
    return int(axis.split("(")[1].split(")")[0]) if "(" in axis else 1


class Fuzz:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        self.meshes = [Sharder(rng, "mesh", rng.choice(MESHES))]
        if rng.random() < 0.08:
            self.meshes.append(
                Sharder(rng, "other", rng.choice(MESHES), inlined=rng.random() < 0.4)
            )
        self.single = rng.random() < 0.03  # some values are on one device
        self.count = 0
        self.functions: list[tuple[str, list[Val], list[Val]]] = []
        self.texts: list[str] = []
        self.args: list[tuple[Val, str]] = []
        self.used: set[str] = set()
        self.groups = rng.randrange(1, 4)
        self.annotations = rng.choice([0.02, 0.1, 0.3])
        self.depth = 0

    # Small parts

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def shape(self, rank: int | None = None) -> Shape:
        rng = self.rng
        rank = rng.choice([1, 2, 2, 3]) if rank is None else rank
        if rng.random() < 0.02:
            return tuple(rng.choice([5, 7, 9, 15]) for _ in range(rank))
        return tuple(rng.choice(SIZES) for _ in range(rank))

    def sharder(self) -> Sharder:
        return self.meshes[-1] if self.rng.random() < 0.3 else self.meshes[0]

    def sharding(self, scope: Scope, shape: Shape, **options: float) -> str:
        if self.single and self.rng.random() < 0.2:
            kind = self.rng.choice(["<[], device_ids=[3]>", "<[]>"])
            dims = "" if "device" in kind else ", ".join("{?}" for _ in shape)
            return f"<mesh{kind}, [{dims}]>"
        return self.sharder().draw(shape, scope.manual, **options)

    def attribute(self, scope: Scope, *shapes: Shape, chance: float | None = None) -> str:
        """` {sdy.sharding = ...}` for an op's results, or nothing."""
        if self.rng.random() >= (self.annotations * 0.3 if chance is None else chance):
            return ""
        shown = ", ".join(self.meshes[0].draw(s, scope.manual) for s in shapes)
        return f" {{sdy.sharding = #sdy.sharding_per_value<[{shown}]>}}"

    def argument(self, shape: Shape, dtype: str = "f32") -> Val:
        """A new argument of the function that is being written."""
        value = Val(self.fresh(), shape, dtype)
        chance = 0.5 if len(self.texts) or self.rng.random() < 0.8 else 1.0
        given = ""
        if self.rng.random() < chance:
            given = f" {{sdy.sharding = #sdy.sharding{self.sharding(Scope(), shape)}}}"
        self.args.append((value, given))
        return value

    def pick(
        self, scope: Scope, good: Callable[[Val], bool] = lambda v: v.dtype == "f32"
    ) -> Val | None:
        """A value that suits, unread ones and late ones first."""
        found = [v for v in scope.values if good(v)]
        if not found:
            return None
        unread = [v for v in found if v.name not in self.used]
        if unread and self.rng.random() < 0.6:
            chosen = self.rng.choice(unread)
        elif self.rng.random() < 0.5:
            chosen = self.rng.choice(found[-4:])
        else:
            chosen = self.rng.choice(found)
        self.used.add(chosen.name)
        return chosen

    def some(self, scope: Scope, low: int = 1, high: int = 3) -> Val:
        """A float tensor of a rank in that range, an argument if need be."""
        found = self.pick(scope, lambda v: v.dtype == "f32" and low <= len(v.shape) <= high)
        if found is not None and (self.depth or self.rng.random() < 0.9):
            return found
        return self.make(scope, self.shape(self.rng.randint(low, high)))

    def like(self, scope: Scope, shape: Shape, dtype: str = "f32") -> Val:
        """A value of that type: one that there is, a constant, a broadcast, an argument."""
        found = self.pick(scope, lambda v: v.shape == shape and v.dtype == dtype)
        if found is not None and self.rng.random() < 0.7:
            return found
        return self.make(scope, shape, dtype)

    def make(self, scope: Scope, shape: Shape, dtype: str = "f32") -> Val:
        rng = self.rng
        if not scope.manual and self.depth == 0 and rng.random() < 0.6:
            made = self.argument(shape, dtype)
            scope.values.append(made)
            self.used.add(made.name)
            return made
        one = "1.0" if dtype == "f32" else "true" if dtype == "i1" else "1"
        chance = rng.random()
        if shape and chance < 0.3:
            scalar = self.op(
                scope, f"stablehlo.constant dense<{one}> : {tensor((), dtype)}", (), dtype
            )
            text = f"stablehlo.broadcast_in_dim {scalar.name}, dims = [] : "
            return self.op(scope, f"{text}({scalar.type}) -> {tensor(shape, dtype)}", shape, dtype)
        if shape and dtype != "i1" and chance < 0.5:
            dim = rng.randrange(len(shape))
            return self.op(
                scope, f"stablehlo.iota dim = {dim} : {tensor(shape, dtype)}", shape, dtype
            )
        text = f"stablehlo.constant dense<{one}> : {tensor(shape, dtype)}"
        return self.op(scope, text, shape, dtype)

    def op(self, scope: Scope, text: str, shape: Shape, dtype: str = "f32") -> Val:
        """Write a line with one result."""
        made = Val(self.fresh(), shape, dtype)
        if " : " in text and "dense<" not in text:
            head, _, tail = text.rpartition(" : ")
            if "{" not in head:
                text = f"{head}{self.attribute(scope, shape)} : {tail}"
        scope.lines.append(f"{made.name} = {text}")
        scope.values.append(made)
        return made

    def ops(
        self, scope: Scope, texts: str, shapes: list[Shape], dtypes: list[str] | None = None
    ) -> list[Val]:
        """Write an op with several results; `texts` follows the `=`."""
        base = self.fresh()
        scope.lines.append(f"{base}:{len(shapes)} = {texts}")
        kinds = dtypes or ["f32"] * len(shapes)
        made = [
            Val(f"{base}#{n}", s, d) for n, (s, d) in enumerate(zip(shapes, kinds, strict=True))
        ]
        if len(shapes) == 1:
            scope.lines[-1] = f"{base} = {texts}"
            made = [Val(base, shapes[0], kinds[0])]
        scope.values.extend(made)
        return made

    # Programs

    def body(self, scope: Scope, steps: int) -> None:
        """Write so many steps."""
        from tests.shard.fuzz_flow import FLOW
        from tests.shard.fuzz_ops import OPS

        makers = [maker for maker, _ in (*OPS, *FLOW)]
        weights = [weight for _, weight in (*OPS, *FLOW)]
        for _ in range(steps):
            self.rng.choices(makers, weights)[0](self, scope)

    def results(self, scope: Scope, mine: int) -> list[Val]:
        """What a function returns: above all what nobody has read."""
        rng = self.rng
        own = scope.values[mine:]
        unread = [v for v in own if v.name not in self.used]
        if rng.random() < 0.8:
            chosen = unread
        else:
            chosen = rng.sample(own, min(len(own), rng.randint(1, 3)))
        return chosen or [self.some(scope)]

    def function(self, name: str, steps: int, private: bool) -> None:
        self.args, self.used = [], set()
        scope = Scope()
        for _ in range(self.rng.randint(1, 3)):
            scope.values.append(self.argument(self.shape()))
        self.body(scope, steps)
        returned = self.results(scope, 0)
        shown = []
        for value in returned:
            given = ""
            if self.rng.random() < 0.3:
                given = f" {{sdy.sharding = #sdy.sharding{self.sharder().draw(value.shape)}}}"
            shown.append(f"{value.type}{given}")
        args = ", ".join(f"{v.name}: {v.type}{given}" for v, given in self.args)
        word = "private " if private else ""
        lines = "\n".join(f"  {line}" for line in scope.lines)
        self.texts.append(
            f"func.func {word}@{name}({args}) -> ({', '.join(shown)}) {{\n{lines}\n"
            f"  return {names(*returned)} : {types(*returned)}\n}}"
        )
        self.functions.append((name, [v for v, _ in self.args], returned))

    def module(self, steps: int) -> str:
        """The whole program; main has so many steps at most."""
        rng = self.rng
        for n in range(rng.choice([0, 0, 0, 1, 2])):
            self.function(f"f{n}", rng.randint(1, 5), True)
        roots = 2 if rng.random() < 0.08 else 1
        for n in range(roots):
            self.function("main" if n == 0 else f"main{n}", rng.randint(2, steps), False)
        meshes = [mesh.text for mesh in self.meshes if mesh.text]
        return "\n".join([*meshes, *self.texts]) + "\n"


def program(seed: int, steps: int = 14) -> str:
    """The program of a seed."""
    return Fuzz(seed).module(steps)


def size(shape: Shape) -> int:
    """The number of elements."""
    return math.prod(shape)
