"""Loop nests over several buffers: dims by role, with strides."""
