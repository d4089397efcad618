"""Plans that `weft.plan` finds against Megatron's and FSDP's, on 8 and 64 H100s, by the simulator.

    python benchmarks/plan.py [gpt2 llama mixtral] [--devices 8 64] [--run]

The recipes are files (tests/plan/recipes), written from what their authors publish; the search
does not read them. With --run each plan found also runs in lockstep on a small variant of the
model, and its results are compared with JAX's.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.plan.compared import MACHINES, compare, run_tiny


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=["gpt2", "llama", "mixtral"])
    parser.add_argument("--devices", type=int, nargs="*", default=[*MACHINES])
    parser.add_argument("--run", action="store_true")
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        for devices in arguments.devices:
            begin = time.process_time()
            found = compare(kind, devices)
            took = time.process_time() - begin
            print(f"{kind} on {MACHINES[devices]}, {took:.0f} s of search and recipes")
            for name, title, seconds, memory, fits in found.rows:
                note = "" if fits else "  does not fit"
                print(
                    f"  {name:<9} {title:<26} {1e3 * seconds:9.1f} ms",
                    f"{memory / 2**30:7.1f} GiB{note}",
                )
            for line in found.best.about:
                print(f"    {line}")
            if arguments.run:
                for plan in found.plans:
                    off = run_tiny(kind, plan)
                    print(f"  in lockstep: {plan.title}: largest difference {off:.1e}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
