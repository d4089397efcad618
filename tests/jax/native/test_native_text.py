"""The door's native code compiles for 64-bit ARM, too; it runs only where JAX does."""

from __future__ import annotations

import pytest

from weft.emit.llvm.jit.machine_code import compile_text
from weft.emit.llvm.jit.processor import ARM_LINUX, ARM_MACOS, Processor
from weft.jax.abi import api
from weft.jax.native.functions import text


@pytest.mark.parametrize("processor", [ARM_LINUX, ARM_MACOS], ids=lambda p: p.triple)
def test_the_native_code_compiles_for_arm(processor: Processor) -> None:
    made = text(api())
    assert "x86" not in made and "..." not in made, "no intrinsics, and no variadic calls"
    assert compile_text(made, processor)
