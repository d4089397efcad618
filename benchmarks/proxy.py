"""The proxy: a round trip, a step, and transfers against a plain gRPC stream.

    python benchmarks/proxy.py [--megabytes 256] [--rounds 5] [--json FILE]

A server in another process on this machine. `plain` are gRPC streams of the same chunks that do
nothing with them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np

from weft.remote.client import connect
from weft.remote.server import DeviceServer, ServerOptions
from weft.remote.wire import CHUNK, LARGEST_MESSAGE

SIZES = [(f"grpc.max_{way}_message_length", LARGEST_MESSAGE) for way in ("send", "receive")]
PROGRAM = """module @add {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = stablehlo.add %x, %x : tensor<4xf32>
    return %y : tensor<4xf32>
  }
}"""


class Plain(grpc.GenericRpcHandler):
    def service(self, details):
        method = details.method.rpartition("/")[2]
        if method == "Echo":
            return grpc.stream_stream_rpc_method_handler(lambda requests, context: iter(requests))
        if method == "Up":
            return grpc.stream_unary_rpc_method_handler(
                lambda requests, context: str(sum(map(len, requests))).encode()
            )
        if method == "Down":
            return grpc.unary_stream_rpc_method_handler(_down)
        return None


def _down(request, context):
    chunk = bytes(CHUNK)
    for _ in range(int(request)):
        yield chunk


def serve(pipe):
    weft_server = DeviceServer(ServerOptions())
    plain = grpc.server(ThreadPoolExecutor(4), options=SIZES)
    plain.add_generic_rpc_handlers((Plain(),))
    pipe.send((weft_server.start(), plain.add_insecure_port("127.0.0.1:0")))
    plain.start()
    pipe.recv()


def times(fn, count, warm=20):
    for _ in range(warm):
        fn()
    found = []
    for _ in range(count):
        start = time.perf_counter()
        fn()
        found.append(time.perf_counter() - start)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    port, plain_port = ours.recv()
    client = connect(f"127.0.0.1:{port}")
    channel = grpc.insecure_channel(f"127.0.0.1:{plain_port}", SIZES)

    outgoing = queue.SimpleQueue()
    stream = channel.stream_stream("/plain/Echo")(iter(outgoing.get, None))

    def echo():
        outgoing.put(b"x" * 100)
        next(stream)

    program, x = client.compile(PROGRAM), client.put(np.ones(4, np.float32))
    np.asarray(x)
    rows = {}
    trips = {
        "plain echo": echo,
        "fetch of 16 bytes": lambda: client.connection.request("fetch", array=x.handle).wait(),
        "execute and wait": lambda: program(x)[0].block_until_ready(),
        "execute and read": lambda: np.asarray(program(x)[0]),
        "put, execute, read": lambda: np.asarray(program(np.ones(4, np.float32))[0]),
    }
    for name, fn in trips.items():
        found = [t * 1e6 for t in times(fn, 500)]
        rows[name] = statistics.median(found)
        print(f"{name:20} {rows[name]:8.0f} us median, {min(found):6.0f} us best")

    def pipelined():
        y = x
        for _ in range(200):
            (y,) = program(y)
        y.block_until_ready()

    rows["pipelined execute"] = min(times(pipelined, 3, 1)) / 200 * 1e6
    print(f"{'pipelined execute':20} {rows['pipelined execute']:8.0f} us each, 200 in a row")

    count = options.megabytes
    array, chunk = np.zeros(count << 20, np.uint8), bytes(CHUNK)
    up, down = channel.stream_unary("/plain/Up"), channel.unary_stream("/plain/Down")
    held = client.put(array)

    def fetch():
        held.held = None
        held.numpy()

    pairs = {
        "put": (lambda: client.put(array), lambda: up(iter([chunk] * count))),
        "fetch": (fetch, lambda: sum(map(len, down(str(count).encode())))),
    }
    for name, (fn, plain) in pairs.items():
        # Alternating, so that both meet the same load of the machine.
        taken = [(times(fn, 1, 0)[0], times(plain, 1, 0)[0]) for _ in range(options.rounds + 1)][1:]
        best = [min(column) for column in zip(*taken, strict=True)]
        ratio = statistics.median(b / a for a, b in taken)
        rows[name] = {"GB/s": count / 953.67 / best[0], "of plain": ratio}
        print(
            f"{name:20} {rows[name]['GB/s']:8.2f} GB/s, plain {count / 953.67 / best[1]:.2f} GB/s: "
            f"{ratio:.0%} of plain (median of pairs), best to best {best[1] / best[0]:.0%}"
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file)
    client.close()
    ours.send(None)
    process.join(10)


if __name__ == "__main__":
    main()
