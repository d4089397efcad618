"""The names of the attributes that modules, functions and ops carry between stages."""

from __future__ import annotations

SHARDING = "sdy.sharding"  # of a global value, before partition
# Of the global value of a local argument or result, after partition.
LOCAL_SHARDING = "weft.sharding"
GLOBAL = "weft.global"  # the type of that global value
STREAM = "weft.stream"  # of an asynchronous start
# Of a module: the devices that it is compiled for, as XLA counts them.
PARTITIONS = "mhlo.num_partitions"
REPLICAS = "mhlo.num_replicas"

# Donated arguments.
DONOR = "jax.buffer_donor"  # the memory may be reused for any value
ALIASED = "tf.aliasing_output"  # the memory is reused for the result of this number
UPDATED = "weft.updated"  # the memory is reused for the result of this number and for no other
DONATED = frozenset({DONOR, ALIASED, UPDATED})

# Calling convention of arguments and results.
LAYOUT = "mhlo.layout_mode"
MEMORY_KIND = "mhlo.memory_kind"
RESULT_INFO = "jax.result_info"  # the path of a result in the function's result tree
DEVICE_ORDER = "weft.device_order"  # the device order of a mesh that differs from the program's
CALLER_SHARDING = "weft.caller_sharding"  # that callers see, of a value passed with another one
