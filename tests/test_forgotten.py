"""What nobody holds any longer is gone: constants, types, texts of kernels."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import weft.emit.llvm.texts as texts
from weft.capture.stablehlo import mlir_parser
from weft.emit.llvm.emitted import Emitted
from weft.ir.dense import Dense
from weft.ir.module import apply
from weft.ir.op import rule
from weft.ir.types import F32, TensorType
from weft.ir.write import node_text
from weft.mesh import Axis, Mesh
from weft.ops.shape import Constant
from weft.partition.partitioners.constants import repeated_block


def test_constants() -> None:
    mesh = Mesh(x=2)
    value = Dense(np.tile(np.arange(5000.0, dtype=np.float32), 2))
    node = apply(Constant(value))
    node_text(node)
    rule(node.op, ())
    for axes in ((), (Axis("x"),)):
        block = repeated_block(value, (axes,), mesh)
        assert block is not None
    held = weakref.ref(value)
    del node, value, block
    gc.collect()
    assert held() is None


def test_types() -> None:
    type = TensorType((123457, 3), F32)
    assert type is TensorType((123457, 3), F32) and str(type) == "tensor<123457x3xf32>"
    held = weakref.ref(type)
    del type
    gc.collect()
    assert held() is None


def test_texts_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "TEXTS", {})
    monkeypatch.setattr(texts, "emitted_for", lambda kernel, _: Emitted(kernel * 1000, ()))
    monkeypatch.setattr(texts, "_is_brief", lambda kernel: False)
    monkeypatch.setattr(texts, "MOST_CHARACTERS", 5500)
    monkeypatch.setattr(texts, "MOST_TEXTS", 4)
    for names, kept in (("abcdef", "cdef"), (["gg"], ["d", "e", "f", "gg"]), (["hhhh"], ["hhhh"])):
        for name in names:
            assert texts.emitted(name).text == name * 1000  # type: ignore[arg-type]
        assert [*texts.TEXTS] == [*kept]


def test_contexts_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jaxlib")
    made = []
    make = mlir_parser.make_context
    monkeypatch.setattr(mlir_parser, "make_context", lambda: made.append(make()) or made[-1])
    monkeypatch.setattr(mlir_parser, "MUCH", 100)
    reader = mlir_parser.MlirReader()
    for _ in range(6):
        assert b"module" in reader.text(b"module @m {\n}\n" + b" " * 30)
    assert len(made) == 2
