"""Rules that users give: both notations, what is refused and why, and what propagation does."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ops.catalogue import CHECKED, EXAMPLES
from tests.ops.program import Program
from tests.shard.jax_rules import read_by_jax
from weft.capture import parse
from weft.errors import WeftError
from weft.ir.op import rule as rule_of
from weft.ir.rule import Rule, RuleFactor
from weft.ir.scan import parse_signature
from weft.ir.types import TensorType, Types, tensor
from weft.shard import Rules, propagate
from weft.shard.notation import parse_rule

DOT = "(tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>"


def read(text: str, signature: str = DOT, **options: object) -> str:
    return str(parse_rule(text, *parse_signature(signature), **options))


# Shardy's notation


@pytest.mark.parametrize(
    ("text", "signature", "expected"),
    [
        (
            "([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} reduction={k}",
            DOT,
            "([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} reduction={k}",
        ),
        (
            "#sdy.op_sharding_rule<([i, k], [k, j]) -> ([i, j]) {i=8, j=4, k=16}, custom>",
            DOT,
            "([i, k], [k, j])->([i, j]) {i=8, j=4, k=16}",
        ),
        ("([i,k],[k,j])->([i,j])", DOT, "([i, k], [k, j])->([i, j]) {i=8, j=4, k=16}"),
        ("([j, m], [m, k])->([j, k])", DOT, "([i, k], [k, j])->([i, j]) {i=8, j=4, k=16}"),
        (
            "([i, j])->([ij])",
            "(tensor<8x4xf32>) -> tensor<32xf32>",
            "([i, j])->([ij]) {i=8, j=4}",
        ),
        (
            "([ij])->([jk]) {j=4}",
            "(tensor<8xf32>) -> tensor<12xf32>",
            "([ij])->([jk]) {i=2, j=4, k=3}",
        ),
        (
            "([i], [])->([i]) need_replication={i} blocked_propagation={i}",
            "(tensor<8xf32>, tensor<f32>) -> tensor<8xf32>",
            "([i], [])->([i]) {i=8} need_replication={i} blocked_propagation={i}",
        ),
        (
            "([i])->([i]) permutation={i}",
            "(tensor<8xf32>) -> tensor<6xf32>",
            "([i])->([i]) {i=6} permutation={i}",
        ),
        (
            "([i])->([i], []) {i=8}",
            "(tensor<8xf32>) -> (tensor<8xf32>, !stablehlo.token)",
            "([i])->([i], []) {i=8}",
        ),
        ("([])->([])", "(tensor<f32>) -> tensor<f32>", "([])->([]) {}"),
    ],
)
def test_shardys_notation(text, signature, expected):
    assert read(text, signature) == expected


def test_partial_results_of_reductions_are_sums():
    made = parse_rule("([i, k], [k, j])->([i, j]) reduction={k}", *parse_signature(DOT))
    assert [factor.combine for factor in made.factors] == [None, None, "add"]


@pytest.mark.parametrize("op", CHECKED, ids=lambda op: op.name)
@settings(max_examples=5, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_rule_of_every_op_is_read_back(op, data):
    sample = data.draw(EXAMPLES[op])
    if isinstance(sample, Program):
        return
    node = sample.node()
    ours = rule_of(node.op, node.operand_types, node.bodies)
    again = parse_rule(str(ours), node.operand_types, node.types)
    assert str(again) == str(ours)
    assert (again.operands, again.results) == (ours.operands, ours.results)


# JAX's notation


@st.composite
def rules(draw: st.DrawFn) -> tuple[str, Types, Types, dict[str, object]]:
    """A rule in JAX's notation that fits, with its types and options."""
    names = draw(st.lists(st.sampled_from("a b_1 cc d E f i2 jj".split()), max_size=5, unique=True))
    sizes = {name: draw(st.sampled_from([2, 3, 4, 6, 8])) for name in names}
    batch = tuple(draw(st.lists(st.sampled_from([2, 3, 5]), max_size=2)))
    sides: list[list[TensorType]] = [[], []]
    texts: list[list[str]] = [[], []]
    alone: set[str] = set()
    for side in (0, 1):
        for _ in range(draw(st.integers(1, 3))):
            words, shape = [], []
            left = draw(st.permutations(names)) if names else []
            if draw(st.booleans()):
                words.append(draw(st.sampled_from(["...", "...0"])))
                shape += batch
            while left and draw(st.booleans()):
                count = draw(st.sampled_from([1, 1, 2, 3]))
                group, left = left[:count], left[count:]
                if len(group) == 1:
                    alone.add(group[0])
                words.append(group[0] if len(group) == 1 else f"({' '.join(group)})")
                shape.append(math.prod(sizes[name] for name in group))
            texts[side].append(" ".join(words))
            sides[side].append(tensor(*shape))
    text = " -> ".join(", ".join(part) for part in texts)
    used = [name for name in names if any(name in word for word in _words(text))]
    options: dict[str, object] = {n: sizes[n] for n in used if n not in alone}
    kinds = ["reduction_factors", "need_replication_factors", "permutation_factors"]
    given_roles = {name: draw(st.sampled_from([None, None, *kinds])) for name in used}
    for kind in kinds:
        chosen = [name for name in _in_order(text, used) if given_roles[name] == kind]
        if chosen:
            options[kind] = chosen
    return text, tuple(sides[0]), tuple(sides[1]), options


def _words(text: str) -> list[set[str]]:
    return [set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())]


def _in_order(text: str, names: list[str]) -> list[str]:
    words = text.replace("(", " ").replace(")", " ").replace(",", " ").split()
    return sorted(names, key=words.index)


@settings(max_examples=150)
@given(rules())
def test_jaxs_notation_is_read_as_jax_reads_it(sample):
    text, operands, results, options = sample
    ours = str(parse_rule(text, operands, results, **options)).replace(" {}", "")
    theirs = read_by_jax(text, [str(t) for t in operands], [str(t) for t in results], **options)
    assert ours == theirs


def test_what_jax_reads_by_hand():
    signature = "(tensor<2x3x8x16xf32>, tensor<2x3x16x4xf32>) -> tensor<2x3x8x4xf32>"
    expected = (
        "([i, j, k, l], [i, j, l, m])->([i, j, k, m]) {i=2, j=3, k=8, l=16, m=4} reduction={l}"
    )
    assert read("... i k, ... k j -> ... i j", signature, reduction_factors=("k",)) == expected
    assert read("...i k,...k j->...i j", signature, reduction_factors="k") == expected


def test_more_sizes_are_found_than_jax_finds():
    signature = "(tensor<32xf32>) -> tensor<8x4xf32>"
    assert read("(i j) -> i j", signature) == "([ij])->([i, j]) {i=8, j=4}"
    assert read("(i j) -> (i k) l", "(tensor<32xf32>) -> tensor<8x4xf32>", i=4) == (
        "([ij])->([ik, l]) {i=4, j=8, k=2, l=4}"
    )


# What is refused


@pytest.mark.parametrize(
    ("text", "signature", "options", "message"),
    [
        ("([i, k])->([i, j])", DOT, {}, "it is for 1 operand, but the op has 2"),
        ("i k, k j, j -> i j", DOT, {}, "it is for 3 operands, but the op has 2"),
        (
            "([i, k], [k, j])->([i])",
            DOT,
            {},
            "result 0 has 1 dim, but is tensor<8x4xf32>",
        ),
        (
            "([i, k], [k, j])->([i, j]) {i=7}",
            DOT,
            {},
            "factor i has size 7, but operand 0 dim 0 is 8",
        ),
        (
            "i k, k k -> i k",
            DOT,
            {},
            "operand 1 has factor k twice",
        ),
        (
            "([i, k], [j, l])->([i, k])",
            DOT,
            {},
            "factor k has two sizes: operand 0 dim 1 is 16, result 0 dim 1 is 4",
        ),
        (
            "(i j) -> (i j)",
            "(tensor<8xf32>) -> tensor<8xf32>",
            {},
            "the size of factor i does not follow from the shapes",
        ),
        (
            "(i j) -> i j",
            "(tensor<8xf32>) -> tensor<2x3xf32>",
            {},
            "operand 0 dim 0 is 8, but its factors make 6 (i=2, j=3)",
        ),
        (
            "(i j) -> i j",
            "(tensor<8xf32>) -> tensor<8x1xf32>",
            {},
            "operand 0 dim 0 is 8 and has a factor of size 1 beside others (i=8, j=1)",
        ),
        (
            "...i, ... -> ...i",
            "(tensor<2x8xf32>, tensor<3xf32>) -> tensor<2x8xf32>",
            {},
            "batch dim 0 has two sizes: operand 0 dim 0 is 2, operand 1 dim 0 is 3",
        ),
        (
            "...i, ... -> ...i",
            "(tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>",
            {},
            "... is 1 dims in operand 0, but 2 in operand 1",
        ),
        ("i k, k j -> i j", DOT, {"l": 3}, "factor l is in no operand and no result"),
        (
            "i k, k j -> i j",
            DOT,
            {"reduction_factors": ["q"]},
            "factor q is in no operand and no result",
        ),
        (
            "i k, k j -> i j",
            DOT,
            {"reduction_factors": ["k"], "permutation_factors": ["k"]},
            "factor k has two roles",
        ),
        ("i k, k j -> i j", DOT, {"reducton_factors": ["k"]}, "unknown role 'reducton'"),
        ("([i, k], [k, j])->([i, j]) reductoin={k}", DOT, {}, "unknown role 'reductoin'"),
        ("([i, k], [k, j])->([i, j]) {i=x}", DOT, {}, "'i=x' is not a size"),
        ("([i, k], [k, j])->([i, j]) what", DOT, {}, "'what' is not understood"),
        ("([a, k], [k, j])->([a, j])", DOT, {}, "'a' names no factors"),
        ("([i, ], [k, j])->([i, j])", DOT, {}, "'' names no factors"),
        ("[i, k] -> [i]", DOT, {}, "unknown notation"),
        ("(i, [k, j])->([i, j])", DOT, {}, "'i' is not a list of dims"),
        (
            "([i, k], [k, j])->([i, j])",
            DOT,
            {"k": 16},
            "k beside Shardy's notation",
        ),
        ("i k, k j", DOT, {}, "there must be one ->"),
        ("i k -> k -> i", DOT, {}, "there must be one ->"),
        ("i ..., k j -> i j", DOT, {}, "'...' is not understood"),
        ("i-k, k j -> i j", DOT, {}, "'-k' is not understood"),
        ("(i), k j -> i j", DOT, {}, "(i) is not a group"),
        ("(i 2), k j -> i j", DOT, {}, "(i 2) is not a group"),
    ],
)
def test_what_does_not_fit_is_refused(text, signature, options, message):
    with pytest.raises(WeftError) as caught:
        read(text, signature, **options)
    assert caught.value.message.startswith("sharding rule ")
    assert caught.value.message.endswith(f": {message}")
    assert caught.value.help


# The registry

PROGRAM = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(
    %a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
    %b: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %0 = CALL loc("model.py":7:3)
  return %0 : tensor<8x4xf32>
}
func.func private @plain(%a: tensor<8x16xf32>, %b: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
"""
CUSTOM = f"stablehlo.custom_call @gemm(%a, %b) ATTRS : {DOT}"
COMPOSITE = f'stablehlo.composite "my.gemm" %a, %b {{decomposition = @plain}} : {DOT}'
SPREAD = {'<@mesh, [{"y", ?}, {?}]>', '<@mesh, [{"x", ?}, {?}]>'}


def spread(call: str, rules: Rules | None = None) -> set[str]:
    """The shardings that come to values which are not annotated."""
    done = propagate(parse(PROGRAM.replace("CALL", call.replace("ATTRS", ""))), rules=rules)
    return {s.body() for s in done.shardings[1:] if s is not None and s.dims[0].is_open}


def with_attribute(name: str, text: str) -> str:
    return CUSTOM.replace("ATTRS", f"{{{name} = {text}}}")


def test_without_a_rule_nothing_spreads():
    assert spread(CUSTOM) == spread(COMPOSITE) == set()


def dot(operands: Types, results: Types) -> Rule:
    (a, b), (out,) = operands, results
    assert isinstance(a, TensorType) and isinstance(b, TensorType) and isinstance(out, TensorType)
    rows, inner, columns = *a.sizes, out.sizes[1]
    factors = (RuleFactor(rows), RuleFactor(columns), RuleFactor(inner, "reduction", "add"))
    return Rule(factors, (((0,), (2,)), ((2,), (1,))), (((0,), (1,)),))


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("([i, k], [k, j])->([i, j]) reduction={k}", {}),
        ("i k, k j -> i j", {"reduction_factors": ("k",)}),
        (dot, {}),
        (lambda operands, results: "i k, k j -> i j", {}),
        (lambda operands, results: ("i (k l), (k l) j -> i j", {"k": 4, "l": 4}), {}),
    ],
)
def test_rules_of_users(rule, options):
    rules = Rules().add("gemm", rule, **options).add("my.gemm", rule, types=DOT, **options)
    assert "gemm" in rules
    assert spread(CUSTOM, rules) == spread(COMPOSITE, rules) == SPREAD


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "sdy.sharding_rule",
            "#sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} "
            "reduction={k}, custom>",
        ),
        (
            "mhlo.frontend_attributes",
            '{xla.sdy.sharding_rule = "#sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) '
            '{i=8, j=4, k=16}, custom>"}',
        ),
        (
            "mhlo.frontend_attributes",
            '{a = "b", xla.sdy.custom_sharding_rule = "([i, k], [k, j]) -> ([i, j])"}',
        ),
    ],
)
def test_rules_in_the_file(name, text):
    assert spread(with_attribute(name, text)) == SPREAD


def test_a_rule_in_the_file_goes_before_one_by_name():
    rules = Rules().add("gemm", "a b, c d -> e f")
    assert spread(CUSTOM, rules) == set()
    text = "#sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, j=4, k=16}, custom>"
    assert spread(with_attribute("sdy.sharding_rule", text), rules) == SPREAD


def test_a_rule_in_the_file_holds_for_any_op():
    blocked = (
        "#sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} "
        "blocked_propagation={i, k}>"
    )
    plain = f"stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] ATTRS : {DOT}"
    assert spread(plain) == SPREAD
    assert spread(plain.replace("ATTRS", f"{{sdy.sharding_rule = {blocked}}}")) == set()


def test_a_rule_is_refused_when_it_is_registered():
    rules = Rules()
    with pytest.raises(WeftError) as caught:
        rules.add("gemm", "i k, k -> i", types=DOT)
    assert str(caught.value) == (
        "error: 'gemm': sharding rule i k, k -> i: operand 1 has 1 dim, but is tensor<16x4xf32>\n"
        "help: give one factor, or one group of factors, for each dim"
    )
    assert "gemm" not in rules
    with pytest.raises(WeftError, match="'gemm': sharding rule i k, k -> i-: '-' is not"):
        rules.add("gemm", "i k, k -> i-")
    with pytest.raises(WeftError, match="'gemm': sharding rule i k -> i: it is for 1 operand"):
        rules.add("gemm", lambda operands, results: "i k -> i", types=parse_signature(DOT))
    with pytest.raises(WeftError, match="reduction_factors beside a function"):
        rules.add("gemm", dot, reduction_factors=("k",))


def test_a_rule_is_refused_when_it_is_first_used():
    rules = Rules().add("gemm", "i k, k -> i")
    with pytest.raises(WeftError) as caught:
        spread(CUSTOM, rules)
    assert str(caught.value) == (
        "error: 'gemm': sharding rule i k, k -> i: operand 1 has 1 dim, but is tensor<16x4xf32>\n"
        "  --> model.py:7\n"
        "   |  stablehlo.custom_call(tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>\n"
        "help: give one factor, or one group of factors, for each dim"
    )


def test_a_rule_that_a_function_makes_must_fit():
    def wrong(operands: Types, results: Types) -> Rule:
        made = dot(operands, results)
        return Rule(made.factors, made.operands, (((0,),),))

    with pytest.raises(WeftError, match="result 0 has 1 dim, but is tensor<8x4xf32>"):
        Rules().add("gemm", wrong, types=DOT)


def test_a_rule_in_the_file_that_does_not_fit_is_refused():
    text = "#sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=5, j=4, k=16}, custom>"
    with pytest.raises(WeftError, match="factor i has size 5, but operand 0 dim 0 is 8") as caught:
        spread(with_attribute("sdy.sharding_rule", text))
    assert caught.value.loc is not None and caught.value.loc.line == ("model.py", 7)


def test_a_name_may_be_given_another_rule():
    rules = Rules().add("gemm", "a b, c d -> e f")
    assert spread(CUSTOM, rules) == set()
    assert spread(CUSTOM, rules.add("gemm", "i k, k j -> i j")) == SPREAD
