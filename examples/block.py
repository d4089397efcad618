"""One layer of a network, sharded: the function that docs/tour.md follows through the compiler."""

import jax.numpy as jnp
import numpy as np

from weft import P


def block(x, up, down):
    """A feed-forward layer whose rows are normalized."""
    y = jnp.maximum(x @ up, 0) @ down
    return y / jnp.linalg.norm(y, axis=-1, keepdims=True)


def block_inputs():
    random = np.random.default_rng(0)
    return tuple(random.standard_normal(shape, "f") for shape in ((8, 64), (64, 256), (256, 64)))


# The batch is split over "data", the hidden features over "model".
block_shardings = (P("data"), P(None, "model"), P("model"))

if __name__ == "__main__":
    import weft

    compiled = weft.compile(
        block, *block_inputs(), mesh="data=2,model=2", in_shardings=block_shardings
    )
    y = compiled(*block_inputs())
    np.testing.assert_allclose(y, block(*block_inputs()), rtol=1e-4)
    print(compiled)
