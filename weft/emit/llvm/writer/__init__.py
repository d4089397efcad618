"""Writing LLVM IR: functions, vectors, storage, loop nests, addresses.

A kernel's text depends on its shapes: vector widths, unrolled blocks and masks are decided while it
is written, so this builder composes text. Functions that are the same for every program (the thread
pool, native calls of the plugin, the interrupt check) are written once, in the typed subset of
Python of `weft.native`, and have a Python twin.
"""
