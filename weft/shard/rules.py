"""User-defined sharding rules: of custom calls and composites by name, or on an op in the text.

A rule is a text in Shardy's notation, `([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} reduction={k}`
(sizes may be left out), or in that of JAX's custom_partitioning, `i k, k j -> i j`, or a function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from weft.errors import WeftError
from weft.ir.attrs import STRING
from weft.ir.module import Node
from weft.ir.rule import Rule
from weft.ir.scan import dictionary, parse_signature
from weft.ir.types import Types
from weft.ops.control import Composite
from weft.ops.custom_calls.custom import CustomCall
from weft.shard.notation import Notation, parse_rule, read_notation

RuleFunction: TypeAlias = Callable[[Types, Types], "Rule | str | tuple[str, Mapping[str, Any]]"]
GivenRule: TypeAlias = "str | tuple[str, Mapping[str, Any]] | RuleFunction"
Types2: TypeAlias = tuple[Types, Types]  # the types of operands and results

# Where a node's own rule is: Shardy's attribute, or a frontend attribute of XLA's.
_ATTRIBUTE = "sdy.sharding_rule"
_FRONTEND = ("xla.sdy.sharding_rule", "xla.sdy.custom_sharding_rule")


def as_rules(rules: Rules | Mapping[str, GivenRule]) -> Rules:
    """`Rules` from a registry or a dict: a text, (text, options) or a function for each name."""
    if isinstance(rules, Rules):
        return rules
    if not isinstance(rules, Mapping):
        raise WeftError(
            f"rules={rules!r}"[:80] + " are not rules",
            help='give weft.shard.Rules, or a dict: {"gemm": "i k, k j -> i j"}',
        )
    registry = Rules()
    for name, rule in rules.items():
        text, options = rule if isinstance(rule, tuple) else (rule, {})
        registry.add(name, text, **options)
    return registry


class Rules:
    """Rules for custom calls and composites, by their names."""

    def __init__(self) -> None:
        self._given: dict[str, Notation | RuleFunction] = {}
        self._made: dict[tuple[str, Types, Types], Rule] = {}

    def add(
        self,
        name: str,
        rule: str | RuleFunction,
        *,
        types: str | Types2 | None = None,
        **options: int | Sequence[str],
    ) -> Rules:
        """Register the rule of a custom call or composite.

        It is checked on `types`, `"(tensor<8x16xf32>) -> tensor<8xf32>"`; without them, on first
        use. `options` are JAX's: `reduction_factors=`, `need_replication_factors=`,
        `permutation_factors=`, and the sizes of factors.
        """
        if callable(rule) and options:
            raise WeftError(
                f"sharding rule of {name!r}: {', '.join(options)} beside a function",
                help="let the function return (text, {...}) with what belongs to the text",
            )
        source = (
            rule if callable(rule) else _with_name(name, lambda: read_notation(rule, **options))
        )
        if types is not None:
            operands, results = parse_signature(types) if isinstance(types, str) else types
            _with_name(name, lambda: _fitted(source, operands, results))
        self._given[name] = source
        # A name may be given a new rule: the fitted ones of the old rule are forgotten.
        self._made = {key: made for key, made in self._made.items() if key[0] != name}
        return self

    def find(self, node: Node) -> Rule | None:
        """The rule of a node: its attribute, or the registered one of its name, or None."""
        text = attribute(node) if node.attrs else None
        name = text if text is not None else called_name(node)
        if name is None or (text is None and name not in self._given):
            return None
        # An attribute's text is its own key beside the names of calls: the same rule on the same
        # types is fitted once for a whole model.
        key = (name, node.operand_types, node.types)
        rule = self._made.get(key)
        if rule is None:
            source = self._given[name] if text is None else text
            rule = self._made[key] = _at_node(node, lambda: _fitted(source, *key[1:]))
        return rule

    def __contains__(self, name: str) -> bool:
        return name in self._given


def attribute(node: Node) -> str | None:
    """The rule in a node's attributes."""
    for name, text in node.attrs:
        if name == _ATTRIBUTE:
            return text
        if name == "mhlo.frontend_attributes" and "sharding_rule" in text:
            given = dictionary(text)
            for key in _FRONTEND:
                if key in given:
                    return str(STRING.read(given[key]))
    return None


def called_name(node: Node) -> str | None:
    """The name of a custom call or a composite; None for any other node."""
    match node.op:
        case CustomCall(call_target_name=name):
            return name
        case Composite(name_=name):
            return name
    return None


def _fitted(source: Notation | RuleFunction | str, operands: Types, results: Types) -> Rule:
    if isinstance(source, str):
        return parse_rule(source, operands, results)
    if isinstance(source, Notation):
        return source.fit(operands, results)
    answer = source(operands, results)
    if isinstance(answer, Rule):
        return _checked(answer, operands, results)
    text, options = answer if isinstance(answer, tuple) else (answer, {})
    return parse_rule(text, operands, results, **options)


def _checked(rule: Rule, operands: Types, results: Types) -> Rule:
    """The rule returned by a user's function, after a check against the types."""
    # Printed and parsed again: the parser has all checks of shapes, groups and roles.
    parse_rule(str(rule), operands, results)
    return rule


def _with_name(name: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except WeftError as error:
        error.message = f"{name!r}: {error.message}"
        raise


def _at_node(node: Node, make: Callable[[], Rule]) -> Rule:
    try:
        return make()
    except WeftError as error:
        name = called_name(node)
        error.message = f"{name!r}: {error.message}" if name else error.message
        raise error.at(node.loc, repr(node)) from None
