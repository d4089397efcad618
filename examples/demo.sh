#!/bin/sh
# What `make demo` shows.
set -eu
cd "$(dirname "$0")/.."

bold=$(printf '\033[1m') plain=$(printf '\033[0m')
if [ ! -t 1 ] || [ -n "${NO_COLOR:-}" ]; then bold='' plain=''; fi
say() { printf '\n%s# %s%s\n' "$bold" "$*" "$plain"; }
show() { printf '%s$ %s%s\n' "$bold" "$*" "$plain"; "$@"; }

say "A Llama-style model in JAX, trained on 8 virtual devices (data=2, model=4)."
show python examples/llama.py

say "Its loss once more, checked value by value against one device; which line causes what is sent."
show weft run examples/llama.py:loss --mesh data=2,model=4 --check --check-every-op

say "The program of one device: local types, and collectives along the mesh's axes."
show weft partition examples/sharded_mlp.mlir -o local.mlir
rm -f local.mlir

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

say "Every collective on 8 H100s: what it costs, why it is there, and which annotation would spare it."
show weft explain examples/llama.py:loss --mesh data=2,model=4 --machine 8xh100 --tries 16

say "A training step on 8 H100s, predicted: nothing runs."
show weft predict examples/llama.py:train_step --mesh data=2,model=4 --machine 8xh100

say "All of it on one page, for a browser: pieces, collectives, timeline, memory, other machines."
show weft report examples/llama.py:train_step --mesh data=2,model=4 --machine 8xh100 --whatif 8xh200 -o report.html
