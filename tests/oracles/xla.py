"""XLA on the CPU, for ops that StableHLO's interpreter does not know."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from tests.oracles.process import Oracle, serve
from weft.ir.types import DTYPES, Array, dtype_of

ORACLE = Oracle("tests.oracles.xla")


def evaluated(text: str) -> list[Array]:
    """The results of a module whose main takes no arguments."""
    return [
        np.frombuffer(base64.b64decode(raw), DTYPES[name].numpy).reshape(shape)
        for name, shape, raw in ORACLE.ask(text)
    ]


def main() -> None:
    """Answer module texts with the results of their main."""
    import jax
    from jax._src.lib import xla_client

    jax.config.update("jax_enable_x64", True)
    device = jax.devices("cpu")[0]
    devices = xla_client.DeviceList((device,))

    def answer(text: str) -> list[tuple[str, tuple[int, ...], str]]:
        client: Any = device.client
        program = client.compile_and_load(text, devices, xla_client.CompileOptions())
        results = program.execute_sharded([]).disassemble_into_single_device_arrays()
        arrays = [np.asarray(result[0]) for result in results]
        return [
            (dtype_of(a.dtype).name, a.shape, base64.b64encode(a.tobytes()).decode())
            for a in arrays
        ]

    serve(answer)


if __name__ == "__main__":
    main()
