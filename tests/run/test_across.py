"""Every collective between processes is that of lockstep, also along stacked and absent axes."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.run.collectives import KINDS, MESHES, WAYS, Case, check, disjoint, parts
from tests.run.processes import Processes
from weft.errors import WeftError
from weft.ir.types import DTYPES
from weft.mesh import Axis, Mesh
from weft.ops.distributed.local import COMBINERS

pytestmark = pytest.mark.parametrize("target", ["numpy"], indirect=True)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Case, list[Axis]]:
    mesh = draw(st.sampled_from(MESHES))
    some = st.lists(st.sampled_from(parts(mesh)), max_size=3)
    axes = disjoint(draw(some.filter(bool)), mesh)
    kind, way = draw(st.sampled_from(KINDS)), draw(st.sampled_from(WAYS))
    varies = tuple(disjoint(draw(some), mesh))
    dtype = draw(st.sampled_from(["i32", "f32", "bf16", "f8E4M3FN", "ui8", "complex<f32>"]))
    reduces = kind.split()[-1] in COMBINERS or kind == "scatter together"
    if reduces and dtype == "complex<f32>":
        dtype = "f32"
    rest = (draw(st.integers(1, 2)), draw(st.booleans()))
    columns = 16 if kind == "all_gather" else draw(st.sampled_from([16, 16, 16, 0]))
    case = Case(kind, mesh, tuple(axes), varies, way, dtype, *rest, columns)
    if kind in ("index", "slice") and way == "asynchronous":
        case.way = "plain"
    return case, disjoint(draw(some), mesh)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_processes_are_lockstep(drawn: tuple[Case, list[Axis]]):
    check(*drawn)


@pytest.mark.parametrize("stacked", [(), ("x",), ("y",), ("half",)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_of_eight_devices(kind: str, stacked: tuple[str, ...]):
    """Along both axes at once: one is stacked, or half of one, or none."""
    mesh = Mesh(x=2, y=4)
    axes = [Axis("y", 2, 2) if name == "half" else Axis(name) for name in stacked]
    made = check(Case(kind, mesh, (Axis("y"), Axis("x")), (Axis("x"), Axis("y"))), axes)
    assert bool(made.sent) == (kind not in ("slice", "index"))


ROUNDED = "f8E8M0FNU"  # has powers of two only: sums depend on their order


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("slice", "index")])
def test_every_dtype(kind: str):
    """Each collective of each dtype that StableHLO has it for: there is no hole."""
    axes = (Axis("x"), Axis("y"))
    how = kind.split()[-1]
    for dtype in sorted(DTYPES):
        is_integer = dtype.lstrip("u").startswith("i")
        if how in ("and", "or", "xor") and not is_integer:
            continue
        if dtype == ROUNDED and how in ("add", "together"):
            continue
        check(Case(kind, Mesh(x=2, y=2), axes, axes, dtype=dtype), [Axis("y")])


# What is sent


SIZE = 8 * 16 * 4  # bytes of one device's operand


@pytest.mark.parametrize(
    ("kind", "stacked", "sent"),
    [
        # Of four processes of two devices everyone sends one partial sum to the three others.
        ("all_reduce add", "x", 4 * 3 * SIZE),
        ("all_reduce max", "y", 2 * 1 * SIZE),
        ("all_reduce add", "", 8 * 7 * SIZE),
        # What the two devices of another process get of the sum: a quarter of it.
        ("reduce_scatter add", "x", 4 * 3 * SIZE // 4),
        ("scatter together", "x", 4 * 3 * SIZE // 4),
        # Both devices' pieces, once to each process, and not once to each of its devices.
        ("all_gather", "x", 4 * 3 * 2 * SIZE),
        ("all_gather", "y", 2 * 1 * 4 * SIZE),
        ("all_to_all", "x", 4 * 3 * 2 * SIZE // 4),
        ("broadcast", "x", 3 * SIZE),
        # A ring with a gap: along y it leaves a process once, along x always.
        ("permute", "y", 1 * SIZE),
        ("permute", "x", 7 * SIZE),
    ],
)
def test_bytes(kind: str, stacked: str, sent: int):
    axes = (Axis("x"), Axis("y"))
    made = check(Case(kind, Mesh(x=2, y=4), axes, axes), [Axis(n) for n in stacked])
    assert made.sent == 2 * sent, "in two runs"


@pytest.mark.parametrize("kind", ["all_reduce add", "all_gather", "all_to_all", "permute"])
def test_equal_values_of_a_process_are_sent_once(kind: str):
    along = (Axis("y"),)
    case, mesh = partial(Case, kind, axes=along), Mesh(x=2, y=4)
    equal, others = (
        check(case(mesh=mesh, varies=v), [Axis("x")]).sent for v in (along, (Axis("x"), *along))
    )
    assert others == 2 * equal > 0


# Peers that never come


@pytest.mark.parametrize("kind", ["all_reduce add", "permute pairs"])
def test_a_process_that_is_not_there(kind: str):
    case = Case(kind, Mesh(x=4), (Axis("x"),), (Axis("x"),))
    processes = Processes(case.module(), [Axis("x", 2, 2)], timeout=0.1)
    with pytest.raises(WeftError) as error:
        processes.boxes.run([partial(processes.programs[1], *processes.given(1, case.pieces()))])
    group = "[0, 1, 2, 3]" if kind == "all_reduce add" else "[1, 2]"
    gone = "[0, 1]" if kind == "all_reduce add" else "[1]"
    assert f"devices {gone} of the group {group} never came, in 0.1 s" in str(error.value)
    assert "--> model.py:7" in str(error.value) and "processes are alive" in error.value.help


def test_processes_in_different_collectives():
    cases = [Case(k, Mesh(x=2), (Axis("x"),), (Axis("x"),)) for k in ("all_gather", "broadcast")]
    processes = [Processes(case.module(), []) for case in cases]
    for number, other in enumerate(processes[1].programs):
        other.host.process.transport.boxes = processes[0].boxes
        assert number < 2
    works = [
        partial(p.programs[n], *p.given(n, c.pieces()))
        for n, (p, c) in enumerate(zip(processes, cases, strict=True))
    ]
    with pytest.raises(WeftError, match=r"are in stablehlo\.\w+ of model.py:7"):
        processes[0].boxes.run([works[1], works[0]])


@pytest.mark.parametrize("stacked", ["", "x"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32", "f8E4M3FN"])
@pytest.mark.parametrize("kind", ["all_reduce add", "all_reduce max", "all_reduce mul"])
def test_large_sums_take_two_rounds(
    kind: str, dtype: str, stacked: str, monkeypatch: pytest.MonkeyPatch
):
    """Each process sums a piece for all: the same bits for fewer bytes."""
    axes = (Axis("x"), Axis("y"))
    case = Case(kind, Mesh(x=2, y=4), axes, axes, dtype=dtype, count=2, columns=17)
    one = check(case, [Axis(n) for n in stacked])
    monkeypatch.setattr("weft.emit.numpy.across.ROUND_BYTES", 1)
    two = check(case, [Axis(n) for n in stacked])
    assert two.sent * len(one.programs) == one.sent * 2, "twice the value, and not once to each"
