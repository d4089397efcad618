"""The JAX side of `workers.py`: one of several processes of `jax.distributed`.

Imports stand at the top, as in a user's script: a fork server imports what it finds there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.workers import LAYERS, ROWS, Times, measured


def jax_side(given: argparse.Namespace) -> Times:
    """On the devices that JAX_PLATFORMS names."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    jax.distributed.initialize(address, size, rank)
    mesh = jax.make_mesh((size,), ("d",), devices=jax.devices())
    split = jax.NamedSharding(mesh, jax.P("d"))
    ones = jax.make_array_from_process_local_data(split, np.ones((1, 8), np.float32))
    total = jax.jit(lambda x: x.sum())
    assert float(total(ones)) == 8 * size
    if given.part == "start":
        return {}

    def loss(params: Any, x: Any) -> Any:
        for w in params:
            x = jnp.tanh(x @ w)
        return (x * x).mean()

    def step(params: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x)
        return [w - 0.1 * g for w, g in zip(params, grads, strict=True)], value

    shape = (given.width, given.width)
    local = np.random.default_rng(0).standard_normal(shape, np.float32)[: given.width // size] / 16
    state = [jax.make_array_from_process_local_data(split, local) for _ in range(LAYERS)]
    x = jax.make_array_from_process_local_data(split, np.ones((ROWS, given.width), np.float32))
    jitted = jax.jit(step, donate_argnums=0, out_shardings=([split] * LAYERS, None))

    def run() -> None:
        nonlocal state
        state, value = jitted(state, x)
        jax.block_until_ready((state, value))

    small = measured(lambda: jax.block_until_ready(total(ones)), 10 * given.steps)
    return {"sum of 8 numbers": small, "training step": measured(run, given.steps)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side")
    parser.add_argument("--part", default="")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--width", type=int)
    print(json.dumps(jax_side(parser.parse_args())), flush=True)
