"""Structures are JAX's pytrees as data: the same leaves in the same order, without JAX."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.capture.jax.structure import structure_of
from weft.errors import Unsupported, WeftError
from weft.executable.literal import MOST_DEPTH, is_literal, literal_text, parse_literal
from weft.executable.structure import parse_structure, path_text

State = namedtuple("State", "count mu")
Empty = namedtuple("Empty", "")
Greek = namedtuple("Greek", "μ λ")

literals = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
# JAX sorts the keys of a dict, so those of one dict are of one kind.
NUMBERS = st.integers(-(2**63), 2**63 - 1)
keys = st.sampled_from([st.text(max_size=4), NUMBERS, st.tuples(NUMBERS)])


def dicts(inner):
    return keys.flatmap(lambda key: st.dictionaries(key, inner, max_size=3))


trees = st.recursive(
    st.none() | st.integers(0, 99),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        dicts(inner),
        dicts(inner).map(OrderedDict),
        dicts(inner).map(lambda found: defaultdict(list, found)),
        st.builds(State, inner, inner),
        st.builds(Greek, inner, inner),
        st.just(Empty()),
    ),
    max_leaves=12,
)


@given(trees)
def test_leaves_and_their_order_are_jaxs(tree):
    leaves, definition = jax.tree_util.tree_flatten(tree)
    made = structure_of(definition)
    assert made.leaves == definition.num_leaves == len(leaves)
    if made.leaves:
        assert made.flatten(tree) == leaves
    rebuilt = made.unflatten(leaves)
    assert rebuilt == tree
    assert jax.tree_util.tree_leaves(rebuilt) == leaves
    listed = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    assert [*map(path_text, made.paths())] == listed


@given(trees)
def test_the_text_is_read_back(tree):
    made = structure_of(jax.tree_util.tree_structure(tree))
    assert parse_structure(str(made)) == made
    assert str(parse_structure(str(made))) == str(made)


@given(trees, trees)
def test_another_structure_is_refused(one, other):
    first, second = map(jax.tree_util.tree_structure, (one, other))
    made = structure_of(first)
    try:
        leaves = made.flatten(other)
    except WeftError as error:
        assert first != second
        assert error.help
    else:  # a dict may be of another kind, of the same keys
        assert sorted(map(repr, leaves)) == sorted(map(repr, jax.tree_util.tree_leaves(other)))


@given(literals)
def test_literals_are_read_back_exactly(value):
    assert is_literal(value)
    found = parse_literal(literal_text(value))
    assert repr(found) == repr(value)


def test_the_text_is_python_like():
    tree = ({"w1": 1, "w0": [2, None]}, State(3, {}), (4,), OrderedDict(b=1, a=2), Empty())
    made = structure_of(jax.tree_util.tree_structure(tree))
    assert str(made) == (
        '({"w0": [*, None], "w1": *}, State(count=*, mu={}), (*,), '
        'OrderedDict({"b": *, "a": *}), Empty())'
    )
    assert made.flatten(tree) == [2, 1, 3, 4, 1, 2]


def test_a_namedtuple_is_rebuilt_by_name_and_fields():
    made = parse_structure("State(count=*, mu=*)")
    found = made.unflatten([1, 2])
    assert (type(found).__name__, found._fields, found) == ("State", ("count", "mu"), (1, 2))
    assert type(made.unflatten([3, 4])) is type(found)
    assert made.flatten(found) == made.flatten(State(1, 2)) == [1, 2]


W = {"params": {"w0": 1, "w1": [2, 3]}, "state": State(1, None)}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({**W, "params": {"w1": [2, 3]}}, "['params']['w0'] is missing"),
        ({"params": W["params"]}, "['state'] is missing"),
        ({**W, "more": 1}, "['more'] is not an argument of the program"),
        ({**W, "params": {"w0": 1, "w1": [2]}}, "['params']['w1'] has 1 elements, but the pro"),
        ({**W, "params": {"w0": 1, "w1": (2, 3)}}, "['params']['w1'] is a tuple, but the program"),
        ({**W, "params": {"w0": {}, "w1": [2, 3]}}, "['params']['w0'] is a dict, but the program"),
        ({**W, "params": {"w0": None, "w1": [2, 3]}}, "['params']['w0'] is None, but the program "),
        (
            {**W, "state": (1, None)},
            "['state'] is a tuple, but the program takes a State(",
        ),
        ({**W, "state": State(1, 2)}, "['state'].mu is an int, but the program takes None"),
        ([], "the value is a list, but the program takes a dict"),
    ],
)
def test_a_mismatch_names_the_path(value, message):
    made = structure_of(jax.tree_util.tree_structure(W))
    with pytest.raises(WeftError) as caught:
        made.flatten(value)
    assert caught.value.message.startswith(message)


def test_a_defaultdict_is_not_filled():
    made = parse_structure('{"a": *}')
    given = defaultdict(int, b=1)
    with pytest.raises(WeftError, match="is missing"):
        made.flatten(given)
    assert given == {"b": 1}


def test_nodes_that_only_their_classes_know_are_refused_by_name():
    @jax.tree_util.register_dataclass
    @dataclass
    class Weights:
        w: int

    class Colour(str):
        pass

    for tree, word in (
        (Weights(1), "Weights"),
        ({Colour("red"): 1}, "red"),
        ({math.nan: 1}, "nan"),
        ({1 << 80: 1}, "1208925819614629174706176"),
        (defaultdict(lambda: 1, a=1), "lambda"),
    ):
        with pytest.raises(Unsupported, match=word) as caught:
            structure_of(jax.tree_util.tree_structure(tree))
        assert "cannot be saved" in caught.value.message


def test_optimizer_states_are_described():
    optax = pytest.importorskip("optax")
    params = {"w": np.ones(3, np.float32)}
    state = optax.adamw(1e-3).init(params)
    made = structure_of(jax.tree_util.tree_structure(state))
    leaves = jax.tree_util.tree_leaves(state)
    assert [*map(id, made.flatten(state))] == [*map(id, leaves)]
    rebuilt = parse_structure(str(made)).unflatten(leaves)
    assert rebuilt[0].mu["w"] is state[0].mu["w"]


def nested(depth: int) -> object:
    tree: object = 1
    for _ in range(depth):
        tree = [tree]
    return tree


def test_deep_trees_work_and_deeper_ones_are_refused():
    tree = nested(MOST_DEPTH)
    made = structure_of(jax.tree_util.tree_structure(tree))
    assert parse_structure(str(made)).unflatten(made.flatten(tree)) == tree
    assert hash(made) == hash(parse_structure(str(made)))
    with pytest.raises(Unsupported, match="levels"):
        structure_of(jax.tree_util.tree_structure(nested(MOST_DEPTH + 1)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* *",
        "[*",
        "(*",
        "{*}",
        '{"a": *, "a": *}',
        "{1: *, True: *}",
        "{nan: *}",
        "State(count=*, count=*)",
        "State(_hidden=*)",
        "State(class=*)",
        "lambda()",
        "__import__('os')",
        "State(ﬁ=*)",
        "defaultdict(print, {})",
        "defaultdict({})",
        "OrderedDict(list, {})",
        '{"\\x": *}',
        f"{{{2**63}: *}}",
        "{1" + "0" * 5000 + ": *}",
        "[" * 100_000,
        "{(" + "(" * 100_000,
        "\x00",
    ],
    ids=lambda text: text[:20],
)
def test_texts_that_are_none_are_refused(text):
    with pytest.raises(WeftError):
        parse_structure(text)
