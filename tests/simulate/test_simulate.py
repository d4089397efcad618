"""The simulator: sums, overlap, shared links, loops, noise, and one device for all of them."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from tests.simulate.programs import layers, loop, tiled
from weft.capture import parse
from weft.machine import machine
from weft.predict import predict
from weft.simulate import Noise, simulate
from weft.simulate.network import Network, Transfer


def test_compute_and_waits_add_up_to_the_step():
    for level in (1, 2):
        line = simulate(*tiled(layers(3), level=level))
        parts = line.seconds_of("product", "memory", "attention") + line.exposed
        assert math.isclose(parts, line.seconds, rel_tol=1e-9)
        assert len(line.collectives()) >= 3 and line.exposed > 0
        assert line.exposed <= line.seconds_of("collective") * (1 + 1e-9)


def test_events_of_a_track_do_not_overlap_and_name_the_line():
    line = simulate(*tiled(layers(3)))
    for track in line.tracks:
        events = sorted((e for e in line.events if e.track == track), key=lambda e: e.start)
        for before, after in itertools.pairwise(events):
            assert before.end <= after.start + 1e-12
    assert {e.over for e in line.collectives()} == {"x"}
    assert all("h100" not in e.source and e.source for e in line.collectives())


@pytest.mark.parametrize(("devices", "link"), [(8, "nvlink"), (16, "infiniband")])
def test_collectives_take_the_link_that_reaches_their_groups(devices: int, link: str):
    line = simulate(*tiled(layers(2, mesh=f"x={devices}"), "h100"))
    assert all(link in e.track for e in line.collectives())


@pytest.mark.parametrize("rounds", [0, 1, 2, 3, 40])
def test_a_loop_costs_its_rounds_without_being_unrolled(rounds: int):
    line = simulate(*tiled(loop(rounds)))
    counted = sum(e.times for e in line.collectives())
    assert counted == rounds
    assert len(line.collectives()) == min(rounds, 2)
    parts = line.seconds_of("product", "memory") + line.exposed
    assert math.isclose(parts, line.seconds, rel_tol=1e-9)


def test_twice_the_rounds_take_twice_as_long():
    short, long = (simulate(*tiled(loop(n))).seconds for n in (50, 100))
    assert math.isclose(long, 2 * short, rel_tol=0.02)


def test_a_hundred_thousand_devices_cost_what_eight_cost():
    few, many = tiled(layers(4)), tiled(layers(4, width=100_000, mesh="x=100000"), "h100")
    took = []
    for executable, chosen in (few, many):
        begun = time.process_time()
        for _ in range(5):
            simulate(executable, chosen)
        took.append(time.process_time() - begun)
    assert took[1] < 3 * took[0] + 0.05


def test_memory_over_time_has_the_peak_of_the_plan():
    executable, chosen = tiled(layers(3))
    line = simulate(executable, chosen)
    assert line.peak == executable.memory().needed
    times = [point.seconds for point in line.memory]
    assert times == sorted(times) and times[-1] <= line.seconds


def test_noise_is_reproducible_and_grows_with_the_devices():
    executable, chosen = tiled(layers(3))
    calm = simulate(executable, chosen).seconds
    noisy = [simulate(executable, chosen, noise=Noise(0.05, seed=s)).seconds for s in (1, 1, 2)]
    assert noisy[0] == noisy[1] != noisy[2] and min(noisy) > calm
    slow = simulate(executable, chosen, noise=Noise(straggler=1.5)).seconds
    computing = simulate(executable, chosen).seconds_of("product", "memory")
    assert slow <= calm + 0.5 * computing + 1e-12
    assert slow > calm + 0.25 * computing
    delays = [Noise(0.05, seed=3).draws().delay(1.0, devices) for devices in (2, 8, 1024, 100_000)]
    assert delays == sorted(delays) and delays[-1] < 0.3


def test_collectives_that_share_a_link_share_its_rate():
    def ends(*transfers: tuple[str, str, float, float]) -> list[float]:
        network = Network()
        added = [network.add(Transfer(*transfer)) for transfer in transfers]
        network.drain()
        return [transfer.end for transfer in added]

    assert ends(("a", "nvlink", 0, 1), ("b", "ib", 0, 1)) == [1, 1]
    assert ends(("a", "nvlink", 0, 1), ("b", "nvlink", 0, 1)) == [2, 2]
    assert ends(("a", "nvlink", 0, 1), ("a", "nvlink", 0, 1)) == [1, 2]
    # The second joins half way: both have half left to do, the first at half the rate.
    assert ends(("a", "nvlink", 0, 1), ("b", "nvlink", 0.5, 1)) == pytest.approx([1.5, 2.0])


TRANSFERS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.floats(0, 3), st.floats(1e-3, 2)),
    min_size=1,
    max_size=6,
)


@given(TRANSFERS)
def test_a_network_loses_no_work(transfers: list[tuple[str, str, float, float]]):
    network = Network()
    added = [network.add(Transfer(*transfer)) for transfer in transfers]
    end = network.drain()
    for transfer, (_, _, ready, seconds) in zip(added, transfers, strict=True):
        assert transfer.begin >= ready - 1e-9
        assert transfer.end >= transfer.begin + seconds - 1e-9
    for link in "xy":
        work = sum(seconds for _, on, _, seconds in transfers if on == link)
        assert end >= work - 1e-9
    assert end <= max(r for _, _, r, _ in transfers) + sum(s for *_, s in transfers) + 1e-9


def test_more_streams_never_lose_to_one():
    one = predict(layers(3), machine("8xh100"))
    more = predict(layers(3), replace(machine("8xh100"), streams=(4, 2)))
    assert more.seconds <= one.seconds * 1.001


def branches(*blocks: str) -> float:
    """The seconds of a branch; a block is products (p), sorts (s), loops (l) and branches (b)."""

    def run(kinds: str):
        def block(x, w, p):
            for kind in kinds:
                if kind == "p":
                    x = jnp.tanh(x @ w)
                elif kind == "s":
                    x = jnp.sort(x, 0)
                elif kind == "l":
                    x = lax.fori_loop(0, 5, lambda _, x: jnp.tanh(x @ w), x)
                else:
                    x = lax.switch(p, [run("p"), run("pp")], x, w, p)
            return x

        return block

    f32 = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    traced = jax.jit(lambda p, x, w: lax.switch(p, [*map(run, blocks)], x, w, p)).trace(1, f32, f32)
    text = traced.lower(lowering_platforms=("cpu",)).as_text()
    split = ' {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'
    text = text.replace("%arg2: tensor<512x512xf32>", f"%arg2: tensor<512x512xf32>{split}", 1)
    head, _, rest = text.partition("\n")
    return simulate(*tiled(parse(f'{head}\n  sdy.mesh @mesh = <["x"=8]>\n{rest}'))).seconds


def test_a_branch_takes_as_long_as_its_slowest_block():
    one, two, three = (branches("p" * n, "p") for n in (1, 2, 3))
    assert one < two < three == branches("p", "ppp") == branches("p", "ppp", "pp")
    assert branches("b", "p") == branches("p", "b") == two
    # Five rounds take longer than three products, one round does not.
    assert branches("l", "ppp") == branches("ppp", "l") > three
    assert branches("s", "p") == branches("p", "s") < branches("s", "ppp")
