"""Attention along a split sequence: a ring of keys and values, against one device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.checksums import checksum
from tests.tolerance import assert_close
from weft import Mesh, P

ROWS = P(None, None, "cp")
WINDOWS: dict[str, dict[str, Any]] = {
    "open": {},
    "causal": {"causal": True},
    "window": {"window": (5, 2)},
    "bottom right": {"window": (None, 1), "align": "bottom_right"},
    "softcap": {"causal": True, "softcap": 2.0, "logsumexp": True},
    "behind": {"window": (3, 0)},
}


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def collectives(compiled: Any) -> list[str]:
    return [row.name for row in compiled.collectives()]


@pytest.mark.parametrize(("name", "size"), [*[(name, 13) for name in WINDOWS], ("causal", 8)])
def test_keys_and_values_go_along_a_ring(name: str, size: int) -> None:
    words = WINDOWS[name]

    def attend(q: Any, k: Any, v: Any) -> Any:
        return weft.attention(q, k, v, **words)

    given = [normal(2, 3, size, 4), normal(2, 1, size, 4), normal(2, 1, size, 4)]
    outs = (ROWS, ROWS) if words.get("logsumexp") else ROWS
    made = weft.compile(
        attend, *given, mesh=Mesh(cp=4), in_shardings=(ROWS,) * 3, out_shardings=outs
    )
    assert {*collectives(made)} == {"weft.collective_permute"}
    # Keys and values go all the way, together, or no further than a window reaches back.
    assert sum(row.count for row in made.collectives()) == (1 if name == "behind" else 3)
    # A device has keys behind its own in every step but the first ones.
    assert ("stablehlo.if" in made.text()) == (name in ("causal", "softcap", "behind"))
    found, expected = made(*given), attend(*given)
    is_pair = isinstance(expected, tuple)
    for ours, theirs in zip(*(x if is_pair else (x,) for x in (found, expected)), strict=True):
        assert_close(np.asarray(ours), np.asarray(theirs), length=64)


def test_steps_of_rings(golden: Callable[[Path, str], None]) -> None:
    """The nodes of partitioned programs, and their texts: what a step computes that it need not."""
    lines = []
    for (name, words), size in product(WINDOWS.items(), (8, 13)):
        given = [normal(2, 3, size, 4), normal(2, 1, size, 4), normal(2, 1, size, 4)]
        how = {"mesh": Mesh(cp=4), "in_shardings": (ROWS,) * 3, "target": "numpy"}
        how["out_shardings"] = (ROWS, ROWS) if words.get("logsumexp") else ROWS
        made = weft.compile(lambda *x, words=words: weft.attention(*x, **words), *given, **how)
        module = made.program.stage("partitioned")
        counts = Counter(node.op.name.partition(".")[2] for node in module.nodes())
        found = ", ".join(f"{count} {op}" for op, count in sorted(counts.items()))
        lines.append(f"{name} {size}: {found}, {checksum(module.text())}")
    golden(
        Path(__file__).parents[2] / "golden" / "partition" / "rings.txt", "\n".join(lines) + "\n"
    )


def test_masks_and_biases_are_cut_by_keys() -> None:
    size = 13
    mask = normal(2, 1, size, size) > -0.5
    mask[0, 0, 2] = False  # a query without keys
    bias = normal(1, 3, size, size)

    def attend(q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Any:
        return weft.attention(q, k, v, mask=mask, bias=bias, causal=True)

    given = [normal(2, 3, size, 4), normal(2, 1, size, 4), normal(2, 1, size, 4), mask, bias]
    made = weft.compile(
        attend, *given, mesh=Mesh(cp=4), in_shardings=(ROWS,) * 5, out_shardings=ROWS
    )
    assert not {"stablehlo.all_gather", "stablehlo.all_to_all"} & set(collectives(made))
    assert_close(np.asarray(made(*given)), np.asarray(attend(*given)), length=64)


def test_queries_alone_are_split_at_their_offsets() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return weft.attention(q, k, v, causal=True, align="bottom_right")

    given = [normal(1, 1, 8, 4), normal(1, 1, 11, 4), normal(1, 1, 11, 4)]
    made = weft.compile(
        attend, *given, mesh=Mesh(cp=4), in_shardings=(ROWS, P(), P()), out_shardings=ROWS
    )
    assert collectives(made) == []
    assert_close(np.asarray(made(*given)), np.asarray(attend(*given)), length=64)


@pytest.mark.parametrize(("queries", "keys"), [(8, 12), (12, 8), (1, 8), (1, 1)])
def test_other_numbers_of_keys_make_no_ring(queries: int, keys: int) -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return weft.attention(q, k, v)

    given = [normal(1, 2, queries, 4), normal(1, 2, keys, 4), normal(1, 2, keys, 4)]
    split = [ROWS if x.shape[2] > 1 else P() for x in given]
    how = {"in_shardings": (*split,), "out_shardings": split[0]}
    made = weft.compile(attend, *given, mesh=Mesh(cp=4), **how)
    assert "weft.collective_permute" not in collectives(made)
    assert_close(np.asarray(made(*given)), np.asarray(attend(*given)), length=64)
