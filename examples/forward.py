"""Read a program, look at it, and run one of its functions on arrays of your own."""

from collections import Counter
from pathlib import Path

import numpy as np

import weft

module = weft.parse(Path(__file__).with_name("mlp.mlir"))

counts = Counter(node.op.name for node in module.nodes())
for name, count in counts.most_common(3):
    print(f"{count:3} {name}")

random = np.random.default_rng(0)
forward = module.function("forward")
arrays = [random.standard_normal(type.sizes).astype(np.float32) for type in forward.arg_types]
(probabilities,) = weft.evaluate(module, *arrays, func="forward")
print(probabilities)

x, w1, b1, w2 = arrays
exponentials = np.exp(np.tanh(x @ w1 + b1) @ w2)
expected = exponentials / exponentials.sum(axis=1, keepdims=True)
print("largest difference from numpy:", np.abs(probabilities - expected).max())
