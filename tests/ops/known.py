"""Where Weft differs from an oracle on purpose, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.ops.example import Example
from weft.ir.types import type_of


@dataclass(frozen=True)
class Known:
    """A difference: why, and on which examples (all if not said)."""

    why: str
    where: Callable[..., Any] | None = None


def _holds(example: Example, kind: str) -> bool:
    return any(type_of(a).dtype.kind == kind for a in example.arrays)


# Rules that are not Shardy's.
RULES: dict[str, Known] = {}

# References that are not the oracle's; the specification decides.
REFERENCES: dict[str, Known] = {
    **dict.fromkeys(
        ("chlo.broadcast_maximum", "chlo.broadcast_minimum"),
        Known(
            "XLA compares the real parts of complex numbers only", lambda _, e: _holds(e, "complex")
        ),
    ),
    **dict.fromkeys(
        ("chlo.broadcast_add", "chlo.broadcast_subtract"),
        Known("XLA adds truth values modulo 2", lambda _, e: _holds(e, "bool")),
    ),
    "stablehlo.collective_permute": Known(
        "the interpreter waits for ever for a device that sends to itself",
        lambda op, _: any(source == target for source, target in op.source_target_pairs),
    ),
    **dict.fromkeys(
        ("weft.collective_permute", "weft.reduce_scatter"),
        Known(
            "the interpreter mixes up collectives on one channel, and waits for itself",
            lambda op, e: len(e.arrays) > 1 or any(s == t for t, s in enumerate(_sources(op))),
        ),
    ),
    "stablehlo.compare": Known(
        "the interpreter compares TOTALORDER as FLOAT",
        lambda op, example: op.compare_type == "TOTALORDER",
    ),
    "stablehlo.torch_index_select": Known(
        "XLA reads 64-bit indices as unsigned; what negative ones select is said nowhere",
        lambda _, e: type_of(e.arrays[1]).dtype.name == "i64" and (e.arrays[1] < 0).any(),
    ),
    "stablehlo.einsum": Known(
        "XLA gives the operands' element type, whatever the result's is",
        lambda op, example: op.out.dtype is not example.types[0].dtype,
    ),
}

# Ops that StableHLO's interpreter does not know, and XLA does.
ASK_XLA = {
    "stablehlo.batch_norm_grad",
    "stablehlo.batch_norm_inference",
    "stablehlo.batch_norm_training",
    "stablehlo.broadcast",
    "stablehlo.cholesky",
    "stablehlo.create_token",
    "stablehlo.dot",
    "stablehlo.einsum",
    "stablehlo.fft",  # the interpreter is wrong about IRFFT of odd lengths and of several dims
    "stablehlo.real_dynamic_slice",
    "stablehlo.torch_index_select",
    "stablehlo.triangular_solve",
    "stablehlo.unary_einsum",
}
# The element types that XLA computes in on a CPU as they are; it stores the others in wider ones.
XLA_TYPES = {
    *("i1", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64"),
    *("f16", "bf16", "f32", "f64", "complex<f32>", "complex<f64>"),
}
# Ops that no oracle evaluates, and why.
UNKNOWN_TO_ORACLES = {
    "interpreter.print": "it only prints",
    "interpreter.probe": "the interpreter wants a folder to write to",
    "stablehlo.async_done": "no interpreter runs asynchronous ops",
    "stablehlo.async_start": "no interpreter runs asynchronous ops",
    "stablehlo.custom_call": "a custom call means what its target means",
    "stablehlo.rng": "random numbers",
    "stablehlo.set_dimension_size": "XLA gives the tensor as it was, with a smaller size beside it",
    "stablehlo.rng_bit_generator": "the bits of a default algorithm are its own affair",
}

# Ops that touch fewer bytes than their results have: the rest stays where it is.
TOUCHES_LESS = {
    "stablehlo.reshape",
    "stablehlo.bitcast_convert",
    "stablehlo.dynamic_update_slice",
    "stablehlo.scatter",
    "stablehlo.optimization_barrier",
    "stablehlo.tuple",
    "stablehlo.get_tuple_element",
    "stablehlo.async_done",
}


def _sources(op: Any) -> tuple[int, ...]:
    return getattr(op, "sources", ())
