"""Sharding constraints in PyTorch code: an op that export, decomposition and autograd keep."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from weft.capture.captured import Leaf
from weft.capture.shardings import Spelled, check_without_mesh
from weft.capture.torch.build import AtenLowering, Build, type_of
from weft.errors import WeftError, warn
from weft.ir.module import Module, Node, Value
from weft.ir.rebuild import rewrite
from weft.mesh import Mesh, Sharding, as_sharding, as_spec, parse_sharding
from weft.mesh.spelling import held_mesh
from weft.ops.distributed.sharding import ShardingConstraint

_UNNAMED = "mesh"  # in place of the program's mesh, until it is known


# In the user's code


def is_tensors(x: Any) -> bool:
    """Whether a pytree holds tensors, and only these."""
    import torch
    from torch.utils._pytree import tree_leaves

    leaves = tree_leaves(x)
    return bool(leaves) and all(isinstance(leaf, torch.Tensor) for leaf in leaves)


def constrain_tensors(x: Any, sharding: Spelled) -> Any:
    """A pytree of tensors with constrained shardings; unchanged where nothing is captured."""
    import torch
    from torch.utils._pytree import tree_flatten, tree_unflatten

    values, tree = tree_flatten(x)
    spelled = _per_tensor(sharding, x, tree, len(values))
    if not torch.compiler.is_compiling() and not any(map(_is_fake, values)):
        check_without_mesh(spelled, [Leaf("x", tuple(v.shape), None) for v in values])
        return x
    if not hasattr(torch.ops.weft, "constrain"):
        define_constraint()
    results = [
        v if s is None else torch.ops.weft.constrain.default(v, sharding_text(s, v.dim()))
        for v, s in zip(values, spelled, strict=True)
    ]
    return tree_unflatten(results, tree)


def _is_fake(value: Any) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor)


def _per_tensor(sharding: Spelled, x: Any, tree: Any, count: int) -> list[Spelled]:
    """The sharding of each tensor: one for all, or a pytree of the same structure."""
    from torch.utils._pytree import tree_flatten

    if isinstance(sharding, dict) or (type(sharding) is type(x) and isinstance(x, tuple | list)):
        listed, structure = tree_flatten(sharding, is_leaf=lambda s: s is None)
        if structure != tree:
            raise WeftError(
                f"constrain does not fit: {structure} for values of {tree}",
                help="give one sharding for all, or a pytree of the same structure",
            )
        return [*listed]
    return [sharding] * count


def sharding_text(sharding: Spelled, rank: int) -> str:
    """A sharding as the op's argument: on the mesh that it holds, or the program's."""
    mesh = held_mesh(sharding)
    if mesh is not None:
        return str(as_sharding(sharding, rank))
    spec = as_spec(sharding, rank)
    return str(Sharding(_UNNAMED, spec.dims, spec.replicated, spec.unreduced))


def constrain_module(module: Any, outputs: Spelled, inputs: Spelled) -> Any:
    """Constrain what a module returns, and its positional arguments; returns the hooks' handle."""
    if outputs is None and inputs is None:
        raise WeftError(
            "constrain: no sharding for the module's outputs or inputs",
            help='give one: weft.constrain(module, P("data", None, "model"))',
        )

    def before(_: Any, args: Any) -> Any:
        return _each_tensor(args, inputs)

    def after(_: Any, __: Any, made: Any) -> Any:
        return _each_tensor(made, outputs)

    handles = []
    if inputs is not None:
        handles.append(module.register_forward_pre_hook(before))
    if outputs is not None:
        handles.append(module.register_forward_hook(after))
    return Hooks(tuple(handles))


def _each_tensor(values: Any, sharding: Spelled) -> Any:
    """The values with constraints on those that are tensors of enough dims."""
    import torch
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, lambda value: constrain_tensors(value, sharding), values)


class Hooks:
    """The registered hooks of a module."""

    def __init__(self, handles: tuple[Any, ...]) -> None:
        self.handles = handles

    def remove(self) -> None:
        """Constrain no further calls."""
        for handle in self.handles:
            handle.remove()


@cache
def define_constraint() -> Any:
    """Define `weft::constrain`: a copy of its operand, whose gradient is split in the same way.

    Unless another sharding is given for the gradient.
    """
    import torch

    def constrain(x: torch.Tensor, sharding: str, gradient: str = "") -> torch.Tensor:
        return x.clone()

    schema = '(Tensor x, str sharding, str gradient="") -> Tensor'
    op = torch.library.custom_op("weft::constrain", constrain, mutates_args=(), schema=schema)
    op.register_fake(lambda x, sharding, gradient="": torch.empty_like(x))

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.sharding = inputs[2] or inputs[1]

    def backward(ctx: Any, gradient: Any) -> Any:
        # The gradient of a partial sum is the whole value on every device.
        whole = replace(parse_sharding(ctx.sharding), unreduced=())
        return op(gradient, str(whole)), None, None

    op.register_autograd(backward, setup_context=keep)
    return op  # which lives as long as this object


# In the captured program


def constraint(b: Build, x: Value, sharding: str, gradient: str = "") -> Value:
    """A constraint, whose mesh is that of the program."""
    return b.op(ShardingConstraint(parse_sharding(sharding)), x)


def held_shardings(module: Module) -> list[Sharding]:
    """The constraints of a program that hold a mesh of their own."""
    nodes = module.function("main").body.nodes
    found = [n.op.sharding for n in nodes if isinstance(n.op, ShardingConstraint)]
    return [s for s in found if isinstance(s.mesh, Mesh)]


def place_constraints(module: Module, mesh: Mesh | None) -> Module:
    """The module with its constraints on the mesh, or without them and a warning if none is set."""
    nodes = module.function("main").body.nodes
    if not any(isinstance(node.op, ShardingConstraint) for node in nodes):
        return module
    if mesh is None:
        warn("weft.constrain has no effect in a program that is compiled for no mesh")
        return rewrite(module, _dropped)
    # `annotate` has put the mesh into the module, under a name that was free.
    name = next(name for name, known in module.meshes.items() if known.axes == mesh.axes)

    def on_mesh(node: Node) -> Node | None:
        if not isinstance(node.op, ShardingConstraint):
            return None
        op = ShardingConstraint(_sharding_of(node, node.op.sharding, mesh, name))
        if op == node.op:
            return None
        return Node(op, node.operands, node.types, (), node.attrs, node.loc)

    return rewrite(module, on_mesh)


def _sharding_of(node: Node, sharding: Sharding, mesh: Mesh, name: str) -> Sharding:
    rank = type_of(node.results[0]).rank
    try:
        if isinstance(sharding.mesh, Mesh):
            as_sharding(sharding, rank, mesh)  # raises for another mesh
        return as_spec(sharding, rank).sharding(rank, mesh, name)
    except WeftError as error:
        raise error.at(node.loc, node.loc.name) from None


def _dropped(node: Node) -> Any:
    return node.operands if isinstance(node.op, ShardingConstraint) else None


LOWERINGS: dict[str, AtenLowering] = {"weft.constrain.default": constraint}
