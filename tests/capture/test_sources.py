"""Sources: `weft.compile` asks each kind whether a program is its own."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
import weft.compiled
from weft.capture import Captured, Leaf, capture, sources
from weft.capture.options import CallOptions
from weft.capture.stablehlo.source import StablehloProgram
from weft.errors import WeftError
from weft.mesh import Mesh, P

TEXT = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""


class Network:
    """Of another framework: it can be called, and is not a function of JAX's."""

    def __call__(self, x: Any) -> Any:
        raise AssertionError("it is compiled, not traced")


@dataclass(frozen=True)
class Celsius:
    """A value of that framework."""

    kelvin: float


class NetworkSource(StablehloProgram):
    """Its networks as sources, with values that are converted both ways."""

    def to_program(self, value: Celsius, leaf: Leaf) -> Any:
        return np.full(leaf.shape, value.kelvin - 273, leaf.dtype)

    def to_user(self, array: Any, leaf: Leaf) -> Celsius:
        return Celsius(float(array.numpy()[0]) + 273)

    def is_converted(self, leaf: Leaf) -> bool:
        return True


def network(program: object, options: CallOptions) -> NetworkSource | None:
    return NetworkSource(weft.parse(TEXT)) if isinstance(program, Network) else None


def test_another_framework_brings_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "KINDS", (network, *sources.KINDS))
    compiled = weft.compile(Network())
    for _ in range(2):  # the second time, the program is known
        assert compiled(Celsius(283)) == (Celsius(263),)
    assert weft.compile(TEXT)(np.ones(4, np.float32))[0].numpy().tolist() == [-1] * 4


def test_capture_takes_what_compile_takes(tmp_path: Any) -> None:
    file = tmp_path / "negate.mlir"
    file.write_text(TEXT)
    for program in (TEXT, TEXT.encode(), file, weft.parse(TEXT)):
        captured = capture(program, mesh=Mesh(x=2), in_shardings=P("x"))
        assert isinstance(captured, Captured) and not captured.is_one
        assert '#sdy.sharding<@mesh, [{"x"}]>' in captured.module.text()
    assert capture(lambda x: x + 1, (np.float32(1),)).is_one
    assert not capture(lambda x: (x + 1,), (np.float32(1),)).is_one
    with pytest.raises(WeftError, match="int 3 cannot be compiled"):
        capture(3)


def test_compile_knows_no_framework() -> None:
    tree = ast.parse(Path(weft.compiled.__file__).read_text())
    found = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert found and not [name for name in found if "jax" in name or "torch" in name]
