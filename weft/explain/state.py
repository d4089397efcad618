"""The results of a program that are the next values of its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.ir.attrs import Attrs
from weft.ir.module import Module, Region, Value
from weft.ir.names import RESULT_INFO, SHARDING, UPDATED
from weft.mesh import Sharding
from weft.ops.control import Call, While
from weft.ops.distributed.annotations import sharding_attribute
from weft.ops.scatter import Scatter
from weft.ops.slicing import DynamicUpdateSlice

# Ops that only rearrange a value.
CARRIES = frozenset(
    "stablehlo.convert stablehlo.transpose stablehlo.reshape stablehlo.broadcast_in_dim "
    "sdy.sharding_constraint stablehlo.slice".split()
)


def is_of_torch(module: Module) -> bool:
    """Whether a program is of PyTorch's ops, whose shardings are written as a plan by names."""
    names = (node.loc.name or "" for node in module.nodes())
    return any(name.rpartition("/")[2].startswith("aten.") for name in names)


def with_arguments(module: Module, shardings: Mapping[int, Sharding]) -> Module:
    """The module with other shardings of arguments, and of the results that are their new state."""
    main = module.function("main")
    attrs = list(main.arg_attrs or ((),) * len(main.body.args))
    result_attrs = list(main.res_attrs or ((),) * len(main.body.results))
    state = state_results(module)
    for number, sharding in shardings.items():
        attrs[number] = _with_sharding(attrs[number], sharding)
        result = state.get(number)
        if result is not None and sharding_attribute(result_attrs[result]) is not None:
            result_attrs[result] = _with_sharding(result_attrs[result], sharding)
    function = replace(main, arg_attrs=tuple(attrs), res_attrs=tuple(result_attrs))
    return module.with_functions({**module.functions, main.name: function})


def with_results(module: Module, shardings: Mapping[int, Sharding]) -> Module:
    """The module with other shardings of results."""
    main = module.function("main")
    attrs = list(main.res_attrs or ((),) * len(main.body.results))
    for number, sharding in shardings.items():
        attrs[number] = _with_sharding(attrs[number], sharding)
    function = replace(main, res_attrs=tuple(attrs))
    return module.with_functions({**module.functions, main.name: function})


def named_state(module: Module) -> dict[int, str]:
    """By argument the name of the annotated result that is its next value."""
    main = module.function("main")
    attrs = main.res_attrs or ((),) * len(main.body.results)
    names = result_names(module)
    return {
        argument: names[n]
        for argument, n in state_results(module).items()
        if sharding_attribute(attrs[n]) is not None
    }


def result_names(module: Module) -> list[str]:
    """The paths of results in what the function returns; what a module updates is `new w`."""
    main = module.function("main")
    attrs = main.res_attrs or ((),) * len(main.body.results)
    paths = [str(dict(held).get(RESULT_INFO, "")).strip('"') for held in attrs]
    new = {
        number: f"new {main.body.arg_locs[argument].name}"
        for argument, number in _updated(module).items()
    }
    numbers = [n for n in range(len(paths)) if n not in new]
    return [path or new.get(n) or f"result {numbers.index(n)}" for n, path in enumerate(paths)]


def _updated(module: Module) -> dict[int, int]:
    """By argument the result that is written into its memory, as PyTorch's modules do."""
    attrs = module.function("main").arg_attrs
    found = [(n, dict(held).get(UPDATED)) for n, held in enumerate(attrs or ())]
    return {n: int(str(text).split()[0]) for n, text in found if text is not None}


def state_results(module: Module) -> dict[int, int]:
    """The results that are the next values of arguments, as the weights of a training step are.

    Such a result has the argument's type and is computed from it element by element, by an update
    of a part of it, or by a loop that carries it; as JAX does for donated arguments, the first such
    result goes with the first such argument.
    """
    main = module.function("main").body
    sources = [frozenset((n,)) for n in range(len(main.args))]
    state = _updated(module)
    for number, (value, above) in enumerate(
        zip(main.results, _carried(module, main, sources), strict=True)
    ):
        if number in state.values():
            continue
        alike = [n for n in sorted(above) if n not in state and main.args[n].type == value.type]
        if alike:
            state[alike[0]] = number
    return state


def _carried(
    module: Module, block: Region, sources: Sequence[frozenset[int]]
) -> list[frozenset[int]]:
    """For each result of a block the arguments of the program that it is a next value of."""
    nothing = frozenset[int]()
    above: dict[Value, frozenset[int]] = dict(zip(block.args, sources, strict=True))
    for node in block.nodes:
        held = [above.get(value, nothing) for value in node.operands]
        if not any(held):
            continue
        if isinstance(node.op, Call):
            origins = _carried(module, module.function(node.op.callee).body, held)
        elif isinstance(node.op, While | DynamicUpdateSlice | Scatter):
            # A loop returns what it carries; an update, what its first operands were.
            origins = held
        elif node.op.elementwise or node.op.name in CARRIES:
            origins = [nothing.union(*held)] * len(node.results)
        else:
            continue
        above.update(zip(node.results, origins, strict=False))
    return [above.get(value, nothing) for value in block.results]


def _with_sharding(attrs: Attrs, sharding: Sharding) -> Attrs:
    return tuple(sorted((dict(attrs) | {SHARDING: str(sharding)}).items()))
