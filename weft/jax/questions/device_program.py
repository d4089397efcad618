"""The local program in the form that JAX shows: StableHLO that jaxlib converts to HLO.

Collectives have explicit device groups, ops without a StableHLO form are decomposed, and attributes
hold the shardings of arguments and results.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Protocol

from weft.ir.attrs import STRING, Attrs
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.names import DONATED, PARTITIONS, REPLICAS
from weft.ir.rebuild import Rebuild, Rewritten, rewrite, without
from weft.jax.questions.shardings import argument_tiles, result_tiles
from weft.mesh import MeshAxes
from weft.ops.control import AsyncDone, AsyncStart
from weft.ops.distributed.collective import CollectiveOp, device_lists
from weft.run import LocalProgram

_DIALECTS = ("stablehlo.", "chlo.", "func.")  # dialects with a form in HLO


class Partitioning(Protocol):
    """The numbers of replicas and partitions that a program was compiled for."""

    @property
    def replicas(self) -> int: ...
    @property
    def partitions(self) -> int: ...


class DescribedProgram(Protocol):
    """A compiled program, as far as its text needs it."""

    @property
    def name(self) -> str: ...
    @property
    def module(self) -> Module: ...
    @property
    def local(self) -> LocalProgram: ...
    @property
    def request(self) -> Partitioning: ...


def device_program(executable: DescribedProgram) -> str:
    """The local program; its outline if it has no HLO form."""
    module = _plain(executable)
    if all(node.op.name.startswith(_DIALECTS) for node in module.nodes()):
        text = module.text(locations=True)
        if _converts(text):
            return text
    return outline(executable)


def _plain(executable: DescribedProgram) -> Module:
    """The optimized module in standard dialects."""
    module = executable.module
    rules = (partial(_listed, module), partial(_written_out, module), _at_once)
    module = rewrite(module, *rules)
    begun = {node for node in module.nodes() if isinstance(node.op, AsyncStart)}
    module = _without_notes(without(module, begun))
    functions = {name: _bare(function) for name, function in module.functions.items()}
    attrs = tuple([(n, str(value)) for n, value in _attributes(executable)])
    return Module(functions, {}, module.name or "main", attrs, module.loc)


def _listed(module: Module, node: Node) -> Rewritten:
    """Groups along mesh axes -> explicit device groups."""
    op = node.op
    if not isinstance(op, CollectiveOp) or not isinstance(op.replica_groups, MeshAxes):
        return None
    lists = device_lists(op.replica_groups, module.meshes)
    plain = op.replace(replica_groups=lists)
    return Node(plain, node.operands, node.types, node.regions, node.attrs, node.loc)


def _written_out(module: Module, node: Node) -> Rewritten:
    """A composite -> its decomposition; asynchronous pairs become one node at their end."""
    if not node.op.composite or isinstance(node.op, AsyncStart | AsyncDone):
        return None
    given = {"regions": node.regions} if node.regions else {}
    meaning: Function = node.op.decomposition(  # type: ignore[attr-defined]  # of composites
        "meaning", node.operand_types, module.meshes, **given
    )
    return _inlined(module, meaning.body, node)


def _at_once(node: Node) -> Rewritten:
    """async_done(async_start(x) {f}) -> f(x)."""
    if not isinstance(node.op, AsyncDone):
        return None
    begun = node.operands[0].node
    assert begun is not None and isinstance(begun.op, AsyncStart), "futures come from starts"
    (region,) = begun.regions
    return _inlined(Module({}), region, begun)


def _without_notes(module: Module) -> Module:
    """The module without annotations of passes."""

    def plain(node: Node) -> Rewritten:
        kept = tuple([(name, text) for name, text in node.attrs if not name.startswith("weft.")])
        if kept == node.attrs:
            return None
        return Node(node.op, node.operands, node.types, node.regions, kept, node.loc)

    return rewrite(module, plain)


def _inlined(module: Module, region: Region, node: Node) -> tuple[Value, ...]:
    """Inline a region on a node's operands."""
    inside = Rebuild(module, ())
    inside.became.update(zip(region.args, node.operands, strict=True))
    body = inside.region(region)
    for inner in body.nodes:
        if not inner.loc.known:
            inner.loc = node.loc
    return body.results


def _bare(function: Function) -> Function:
    """A function without attributes private to Weft and JAX."""
    kept = tuple([_donation_attrs(attrs) for attrs in function.arg_attrs])
    return replace(function, arg_attrs=kept, res_attrs=(), attrs=())


def _donation_attrs(attrs: Attrs) -> Attrs:
    return tuple([(name, value) for name, value in attrs if name in DONATED])


def _attributes(executable: DescribedProgram) -> list[tuple[str, str]]:
    """The module attributes: partition count, and shardings of arguments and results."""
    local = executable.local
    whole = result_tiles(local)
    output = whole[0] if len(whole) == 1 else "{" + ", ".join(whole) + "}"
    attributes = [
        (PARTITIONS, f"{executable.request.partitions} : i32"),
        (REPLICAS, f"{executable.request.replicas} : i32"),
    ]
    if whole:  # HLO has no form for an unsharded token
        attributes.append(("mhlo.spmd_output_sharding", STRING.write(output)))
    quoted = ", ".join(map(STRING.write, argument_tiles(local)))
    return [*attributes, ("mhlo.spmd_parameters_shardings", f"[{quoted}]")]


def _converts(text: str) -> bool:
    """Whether jaxlib can convert a program to HLO."""
    from jaxlib import _jax

    try:
        _jax.mlir.mlir_module_to_xla_computation(text)
    except (_jax.JaxRuntimeError, ValueError, RuntimeError):
        return False
    return True


def outline(executable: DescribedProgram) -> str:
    """An outline of a program: its signature around one opaque call."""
    local = executable.local
    takes, gives = local.arg_types, local.result_types
    parameters = ", ".join([f"%arg{n}: {type}" for n, type in enumerate(takes)])
    results = ", ".join(map(str, gives))
    names = ", ".join([f"%arg{n}" for n in range(len(takes))])
    call = f"stablehlo.custom_call @weft.program({names}) {{has_side_effect = true}} : "
    call += f"({', '.join(map(str, takes))}) -> ({results})"
    assignment = f"%made:{len(gives)} = " if gives else ""
    returned = ", ".join([f"%made#{n}" for n in range(len(gives))])
    back = f"return {returned} : {results}" if gives else "return"
    attrs = ", ".join([f"{name} = {value}" for name, value in _attributes(executable)])
    return "\n".join(
        [
            f"module @{executable.name} attributes {{{attrs}}} {{",
            f"  func.func public @main({parameters}) -> ({results}) {{",
            f"    {assignment}{call}",
            f"    {back}",
            "  }",
            "}",
        ]
    )
