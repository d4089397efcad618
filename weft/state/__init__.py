"""`weft.save_state` and `weft.load_state`: checkpoints as safetensors files with an index.

The files hold whole tensors, whatever the mesh: pieces are written to their places in a tensor,
by the processes that have them, and read from there by any other sharding. The index is that of
Hugging Face's checkpoints.
"""

from weft.state.load import load_state
from weft.state.save import save_state

__all__ = ["load_state", "save_state"]
