"""Counts false advice: pieces of `weft explain`'s advice whose predicted gain is not real.

    python benchmarks/advice.py [NAME ...] [--mesh 2x4] [--machine 8xh100] [--every N] [--tries 12]

Every program of tests/shard/corpus.py is explained with each of its annotations. Each piece of
advice is applied as a user would: the program with the new annotation is written as text, read
again, and predicted from scratch, all of its layers. It is false if the step does not become
shorter, or by less than half of what was said.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.shard.corpus import PROGRAMS, annotated, cases
from weft.advise import explain
from weft.capture import parse
from weft.machine import machine, seconds_text
from weft.predict import predict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--mesh", default="2x4")
    parser.add_argument("--machine", default="8xh100")
    parser.add_argument("--every", type=int, default=1, help="of so many programs only the first")
    parser.add_argument("--tries", type=int, default=12)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    on, pieces, false = machine(given.machine), 0, 0
    listed = [
        (name, annotation)
        for name, mesh, annotation in cases(PROGRAMS)
        if mesh == given.mesh and (not given.names or name in given.names)
    ][:: given.every]
    for name, annotation in listed:
        module = annotated(name, given.mesh, annotation)
        explained = explain(module, on, tries=given.tries)
        before = predict(parse(module.text()), on, whole=True, apart=True).seconds
        for advice in explained.advice:
            after = predict(parse(advice.module.text()), on, whole=True, apart=True).seconds
            real, said = before - after, advice.gain
            is_false = real < 0.5 * said
            pieces, false = pieces + 1, false + is_false
            if is_false:
                text = advice.text.replace("\n", "; ")
                print(f"false: {name}, {annotation}: {text}")
            # Each piece of advice is on top of those before it.
            before = after
        gain = seconds_text(explained.prediction.seconds - before) if explained.advice else ""
        count = len(explained.advice)
        print(f"{name}, {annotation}: {count} pieces of advice {gain}", flush=True)
    print(f"{pieces} pieces of advice for {len(listed)} programs, {false} false")


if __name__ == "__main__":
    main()
