"""Examples of einsum: sums, transposes, diagonals, outer products and ellipses."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import array, dims, seeds
from tests.ops.example import Example
from tests.ops.examples.contract import element_types
from weft.ir.op import Op
from weft.ir.types import TensorType
from weft.ops.einsum import Einsum, UnaryEinsum

# The configuration, and the letters of each operand and the result with ellipses written out.
BINARY = (
    ("ij,jk->ik", "ij", "jk", "ik"),
    ("bij,bkj->bki", "bij", "bkj", "bki"),
    ("i,j->ji", "i", "j", "ji"),
    ("ij,ij->", "ij", "ij", ""),
    ("ijk,j->k", "ijk", "j", "k"),
    ("ii,i->i", "ii", "i", "i"),
    (",i->i", "", "i", "i"),
    ("...ij,...jk->...ik", "abij", "abjk", "abik"),
    ("...ij,jk->...ik", "aij", "jk", "aik"),
)
UNARY = (
    ("ij->ji", "ij", "ji"),
    ("ijk->j", "ijk", "j"),
    ("ii->i", "ii", "i"),
    ("i->", "i", ""),
    ("...i->i...", "abi", "iab"),
)


@composite
def einsum(draw: DrawFn) -> Example:
    config, *terms = draw(st.sampled_from(BINARY))
    return _example(draw, Einsum, config, terms)


@composite
def unary_einsum(draw: DrawFn) -> Example:
    config, *terms = draw(st.sampled_from(UNARY))
    return _example(draw, UnaryEinsum, config, terms)


def _example(draw: DrawFn, op: type[Op], config: str, terms: list[str]) -> Example:
    operand, result = draw(element_types())
    sizes = {letter: draw(dims) for letter in sorted(set("".join(terms)))}
    shapes = [tuple(sizes[letter] for letter in term) for term in terms]
    arrays = tuple(array(shape, operand, draw(seeds)) for shape in shapes[:-1])
    return Example(op(config, TensorType(shapes[-1], result)), arrays)


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    Einsum: einsum(),
    UnaryEinsum: unary_einsum(),
}
