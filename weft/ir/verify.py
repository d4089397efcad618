"""The verifier: cheap enough to run after every pass."""

from __future__ import annotations

from weft.errors import WeftError
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.op import infer
from weft.ir.types import Types
from weft.ir.write import node_text

_HELP = "this is a bug in the pass that ran last; attach the module's text to a report"


def verify(module: Module, sound: set[Node] | None = None) -> Module:
    """The module itself, after checks of definitions before uses and of inferred types.

    `sound` are nodes with checked types: those of earlier modules, to which this one's are added.
    """
    signatures = {n: (f.arg_types, f.result_types) for n, f in module.functions.items()}
    sound = set() if sound is None else sound
    for function in module.functions.values():
        _check_function(function)
        _check_region(function.body, set(), signatures, sound)
    return module


def _check_function(function: Function) -> None:
    for what, attrs, values in (
        ("arguments", function.arg_attrs, function.body.args),
        ("results", function.res_attrs, function.body.results),
    ):
        if attrs and len(attrs) != len(values):
            raise WeftError(
                f"function {function.name!r} has {len(values)} {what}, "
                f"but attributes for {len(attrs)}",
                help=_HELP,
                loc=function.loc,
            )


def _check_region(
    region: Region,
    defined: set[Value],
    signatures: dict[str, tuple[Types, Types]],
    sound: set[Node],
) -> None:
    defined.update(region.args)
    for node in region.nodes:
        if not defined.issuperset(node.operands):
            raise _undefined(node)
        for inner in node.regions:
            _check_region(inner, defined, signatures, sound)
            # One set for all scopes, undone at the end: cheaper than a copy for each region.
            defined.difference_update(inner.args)
            for each in inner.nodes:
                defined.difference_update(each.results)
        if node not in sound:  # nodes never change
            types = tuple([v.type for v in node.operands])
            try:
                expected = infer(node.op, types, node.bodies)
            except WeftError as error:
                raise error.at(node.loc, node_text(node)) from None
            if expected != tuple([v.type for v in node.results]):
                raise WeftError(f"{node.op.name}: result types are wrong", help=_HELP).at(
                    node.loc, node_text(node)
                )
            sound.add(node)
        if node.op.control and (callee := getattr(node.op, "callee", None)) is not None:
            _check_call(node, callee, signatures)
        defined.update(node.results)
    if not defined.issuperset(region.results):
        raise WeftError("a region returns a value that it cannot see", help=_HELP, loc=region.loc)


def _undefined(node: Node) -> WeftError:
    error = WeftError(f"{node.op.name}: reads a value that is not defined before it", help=_HELP)
    return error.at(node.loc, node_text(node))


def _check_call(node: Node, callee: str, signatures: dict[str, tuple[Types, Types]]) -> None:
    signature = signatures.get(callee)
    if signature is None:
        known = ", ".join(signatures)
        raise WeftError(f"call of an unknown function {callee!r}", help=f"known: {known}").at(
            node.loc, node_text(node)
        )
    if signature != (node.operand_types, node.types):
        raise WeftError(
            f"the call of {callee!r} does not match its signature",
            help="make the call's types those of the function",
        ).at(node.loc, node_text(node))
