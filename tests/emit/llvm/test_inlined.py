"""Kernels as functions of a flow's module: names of their own, and one mark of inlining each."""

from __future__ import annotations

import re

from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.flow.inlined import INLINE, Inlined

KERNEL = """@table = internal constant [1 x i64] [i64 7]
declare double @sin(double)

define internal i64 @helper(i64 %x) noinline {
  ret i64 %x
}

define void @run(i64 %begin) {
  %1 = call i64 @helper(i64 %begin)
PADDING  ret void
}
"""


def test_functions_are_renamed_and_marked_once():
    small = Emitted(KERNEL.replace("PADDING", ""), (Phase("run", 3, 1), Phase("run", 0, 1)), 65, 1)
    large = Emitted(KERNEL.replace("PADDING", "; more\n" * INLINE), (Phase("run", 2, 1),))
    made = Inlined([("small", small), ("large", large)])
    heads = [line for line in made.functions if line.startswith("define")]
    names = [re.findall(r"@([\w.]+)", head)[0] for head in heads]
    assert names == ["k0.helper", "k0.run", "k1.helper", "k1.run"]
    assert all(head.startswith("define internal ") for head in heads)
    marks = [re.findall(r"\b(?:noinline|alwaysinline)\b", head) for head in heads]
    assert marks == [["noinline"], ["alwaysinline"], ["noinline"], ["noinline"]]
    assert made.functions.count("  %1 = call i64 @k1.helper(i64 %begin)") == 1
    assert [*made.declared] == [
        "@k0.table = internal constant [1 x i64] [i64 7]",
        "declare double @sin(double)",
        "@k1.table = internal constant [1 x i64] [i64 7]",
    ]
    assert made.of["small"].phases == (("k0.run", 3),)  # a phase without tasks is not called
    assert made.scratch == 128 + 64
