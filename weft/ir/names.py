"""The names of the attributes that modules, functions and ops carry between stages."""

from __future__ import annotations

SHARDING = "sdy.sharding"  # of a whole value: before partition
LOCAL_SHARDING = "weft.sharding"  # of the value whose piece an argument or a result is: after it
GLOBAL = "weft.global"  # the type of that whole value
STREAM = "weft.stream"  # of an asynchronous start
PARTITIONS = "mhlo.num_partitions"
REPLICAS = "mhlo.num_replicas"

# Arguments that are given away.
DONOR = "jax.buffer_donor"  # to whatever has a use for the memory
ALIASED = "tf.aliasing_output"  # to the result of this number
DONATED = frozenset({DONOR, ALIASED})

# How arguments and results go in and out.
LAYOUT = "mhlo.layout_mode"
MEMORY_KIND = "mhlo.memory_kind"
RESULT_INFO = "jax.result_info"  # the path of a result in what the function gives
DEVICE_ORDER = "weft.device_order"  # the devices of a mesh whose order is not the program's
TOLD_SHARDING = "weft.told_sharding"  # what callers see of a value that is passed in pieces
