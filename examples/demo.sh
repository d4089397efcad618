#!/bin/sh
# What `make demo` shows.
set -eu
cd "$(dirname "$0")/.."

bold=$(printf '\033[1m') plain=$(printf '\033[0m')
if [ ! -t 1 ] || [ -n "${NO_COLOR:-}" ]; then bold='' plain=''; fi
say() { printf '\n%s# %s%s\n' "$bold" "$*" "$plain"; }
show() { printf '%s$ %s%s\n' "$bold" "$*" "$plain"; "$@"; }

say "A perceptron with a softmax, evaluated exactly; the program checks itself."
show weft eval examples/mlp.mlir

say "One program on 4 devices at once: partial products, then an all-reduce."
show weft eval examples/all_reduce.mlir --devices 4

say "A loop."
show weft eval examples/newton.mlir

say "How every value of a program is split over a mesh of 8 devices."
show weft show examples/sharded_mlp.mlir

say "Why one of them is split so."
show weft why examples/sharded_mlp.mlir %6

say "A mistake, and where it is."
show weft check examples/errors/sizes.mlir || true

say "Every op says how it splits: its factor rule is what sharding, partitioning and tiling read."
show weft ops dot_general

say "All the ops, by family."
show weft ops --summary
