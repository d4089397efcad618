"""Processes with some of the devices each: all together they give what lockstep gives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.optimize.local_programs import local_program as whole_numbers
from tests.partition.differential import cut
from tests.partition.inputs import arguments
from tests.run.processes import Processes
from tests.run.random_programs import Sample, programs
from tests.run.stacks import along, shared
from tests.run.test_control import EVERY, HALVE, IF, LOOP, SCALE, X, numbers, program, summed
from tests.shard.corpus import annotated
from tests.tolerance import assert_close
from weft.capture import parse
from weft.errors import WeftError
from weft.executable.items import Collective, Launch, all_items
from weft.executable.read import read_tiled
from weft.executable.text import tiled_text
from weft.executable.verify import verify_tiled
from weft.ir.module import Module
from weft.ir.types import Array
from weft.mesh import Axis, Mesh
from weft.pipeline import compile_module, local_program
from weft.run.in_memory import Mailboxes

pytestmark = pytest.mark.parametrize("target", ["numpy", "llvm"], indirect=True)
SUMS = 1 << 12  # roundings that a result may sum up
NONE: list[Axis] = []


def lockstep(module: Module, pieces: Sequence[Array]) -> list[Array]:
    """What one process with all devices gives, in the order of the mesh."""
    program = local_program(module)
    given = [shared(program, n, array) for n, array in enumerate(pieces)]
    return [made.pieces() for made in program(*given)]


def check(
    module: Module, pieces: Sequence[Array], stacked: Sequence[Axis], length: int = 0
) -> Processes:
    """Processes give what lockstep does: the same bits, or nearly where sums are rounded."""
    expected, processes = lockstep(module, pieces), Processes(module, stacked)
    for _ in range(2):  # the second time into memory that is planned
        for ours, theirs in zip(processes.run(pieces), expected, strict=True):
            if length:
                assert_close(ours, theirs, length)
            else:
                np.testing.assert_array_equal(ours, theirs)
    return processes


def parts(mesh: Mesh) -> list[list[Axis]]:
    """What may be stacked: nothing, each axis, half of one, everything."""
    names = [Axis(name) for name, _ in mesh.axes]
    halves = [Axis(n, before, 2) for n, size in mesh.axes if size == 4 for before in (1, 2)]
    return [NONE, *[[axis] for axis in (*names, *halves)], names]


# Whole programs


@cache
def compiled(
    name: str, annotation: str, mesh: Mesh, level: int
) -> tuple[Module, tuple[Array, ...]]:
    """A program of the corpus for every device, and the pieces of its arguments."""
    module = annotated(name, "2x4", annotation)
    local = compile_module(module, mesh, level=level, to="optimized").module  # type: ignore[arg-type]
    return local, cut(local, arguments(module, 0))


@pytest.mark.parametrize("stacked", ["none", "data", "half", "all"])
@pytest.mark.parametrize("mesh", [(1, 2), (2, 2), (2, 4)], ids=str)
def test_two_four_and_eight_devices(mesh: tuple[int, int], stacked: str):
    data, model = mesh
    axes = {
        "none": NONE,
        "data": [Axis("data")],
        "half": [Axis("model", 2, 2)] if model == 4 else [Axis("model")],
        "all": [Axis("data"), Axis("model")],
    }[stacked]
    module, pieces = compiled("mlp", "tensor", Mesh(data=data, model=model), 2)
    made = check(module, pieces, axes, SUMS)
    half = data * (2 if model == 4 else 1)
    count = {"none": data * model, "data": model, "half": half, "all": 1}
    assert len(made.programs) == count[stacked]


@pytest.mark.parametrize(
    ("name", "annotation", "level", "stacked"),
    [
        ("forward 1", "tensor", 1, ""),
        ("forward 1", "tensor", 2, "model"),
        ("training 1", "zero", 2, "data"),
        ("experts", "experts", 1, ""),
        ("experts", "experts", 1, "data"),
        ("loops", "reduced", 0, ""),
        ("loops", "reduced", 1, "model"),
        ("mapped", "both", 1, ""),
        ("mapped", "both", 2, "data"),
        ("convolutional", "space", 1, "model"),
        pytest.param("training 1", "zero", 2, "", marks=pytest.mark.long),
        pytest.param("convolutional", "space", 1, "", marks=pytest.mark.long),
    ],
)
def test_programs_of_eight_devices(name: str, annotation: str, level: int, stacked: str):
    module, pieces = compiled(name, annotation, Mesh(data=2, model=4), level)
    made = check(module, pieces, [Axis(stacked)] if stacked else NONE, SUMS)
    if not stacked:
        assert made.sent, "devices meet, and are alone"


@settings(max_examples=12)
@given(st.integers(0, 100_000), st.integers(4, 20), st.data())
def test_whole_numbers(seed: int, count: int, data: st.DataObject):
    """Whoever sums them up, and in whatever order, they are the same."""
    program = whole_numbers(seed, count)
    order = program.mesh.devices().reshape(-1)
    pieces = [array[order] for array in program.arrays(seed)]
    check(program.module, pieces, data.draw(st.sampled_from(parts(program.mesh))))


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(programs(), st.data())
def test_floats(sample: Sample, data: st.DataObject):
    order = sample.mesh.devices().reshape(-1)
    stacked = data.draw(st.sampled_from(parts(sample.mesh)))
    check(sample.module, [array[order] for array in sample.stacks], stacked, SUMS)


# Who a device is


WHO = """module attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 3 : i32} {
  func.func @main() -> (tensor<ui32>, tensor<ui32>) {
    %0 = stablehlo.partition_id : tensor<ui32>
    %1 = stablehlo.replica_id : tensor<ui32>
    return %0, %1 : tensor<ui32>, tensor<ui32>
  }
}"""


@pytest.mark.parametrize("stacked", [NONE, [Axis("device", 1, 3)], [Axis("device", 3, 2)]])
def test_replicas_and_partitions(stacked: list[Axis]):
    check(parse(WHO), [], stacked)
    assert [p.tolist() for p in Processes(parse(WHO), stacked).run([])] == [
        [0, 1, 0, 1, 0, 1],
        [0, 0, 1, 1, 2, 2],
    ]


# Control flow


@pytest.mark.parametrize("stacked", [NONE, [Axis("a")], [Axis("b")]], ids=str)
@pytest.mark.parametrize("axes", [("a",), ("b",), ("a", "b")], ids=str)
def test_every_process_goes_its_own_way(axes: tuple[str, ...], stacked: list[Axis]):
    for text in (
        LOOP.format(work=SCALE),
        IF.format(yes="%y = stablehlo.abs %x : tensor<4xf32>", no=HALVE),
    ):
        module = along(program(text), [("a", "b"), axes])
        made = check(module, [X, numbers(*axes)], stacked)
        items = [*all_items(made.first.tiled.block)]
        apart = {type(i).__name__ for i in items}
        if any(getattr(i.kernel, "devices", ()) for i in items if isinstance(i, Launch)):
            apart.add("DivergentLoop")  # every device goes through a kernel of its own
        varies = bool({*axes} & {axis.name for axis in stacked})
        assert bool({"DivergentLoop", "DivergentBranch"} & apart) == varies, (
            "rows are for who is here"
        )


@pytest.mark.parametrize("stacked", [NONE, [Axis("a")], [Axis("b")]], ids=str)
@pytest.mark.parametrize("axes", EVERY, ids=str)
def test_devices_meet_where_their_group_goes(axes: tuple[str, ...], stacked: list[Axis]):
    yes, work = "%y = " + summed("x", "b"), "%s = " + summed("v", "b")
    work += "\n%out = stablehlo.multiply %s, %half : tensor<4xf32>"
    for text in (IF.format(yes=yes, no=HALVE), LOOP.format(work=work)):
        module = along(program(text), [("a", "b"), ("a", "b") if axes == ("a", "b") else ("a",)])
        check(module, [X, numbers("a")], stacked, SUMS)


SEND = """%y = "stablehlo.collective_permute"(%x) <{
    channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    source_target_pairs = dense<[[0, 1], [1, 2], [3, 4], [4, 5]]> : tensor<4x2xi64>}>
    : (tensor<4xf32>) -> tensor<4xf32>"""


@pytest.mark.parametrize("stacked", [NONE, [Axis("a")], [Axis("b")]], ids=str)
def test_only_those_meet_who_send_to_one_another(stacked: list[Axis]):
    """The other half of the devices does not come to the permutation at all."""
    module = along(program(IF.format(yes=SEND, no=HALVE)), [("a", "b"), ("a",)])
    check(module, [X, numbers("a")], stacked)


# What goes wrong


def test_who_never_comes_is_named():
    text = IF.format(yes="%y = " + summed("x", "b"), no=HALVE)
    module = along(program(text), [("a", "b"), ("a", "b")])
    processes = Processes(module, NONE, timeout=0.2)
    with pytest.raises(
        WeftError, match=r"all_reduce: devices \[.*\] of the group \[.*\] never came"
    ) as error:
        processes.run([X, numbers("b")])
    assert error.value.loc is not None and error.value.loc.known


def test_the_pipeline_makes_one_executable_for_all_processes():
    module = annotated("mlp", "2x4", "tensor")
    stacked = [Axis("model")]
    tiled = compile_module(module, stacked=stacked, to="tiled").text("tiled", locations=True)
    boxes = Mailboxes()
    for device in (0, 5):
        made = compile_module(module, stacked=stacked, process=boxes.process(device))
        assert made.text("tiled", locations=True) == tiled
        assert made.local.stack_dims.absent == (0,)
    with pytest.raises(WeftError, match="spans several processes"):
        compile_module(module, stacked=stacked)


def test_a_program_that_is_not_told_who_it_is():
    module = along(program(LOOP.format(work=SCALE)), [("a", "b"), ("a",)])
    for process in (None, Mailboxes().process(6), Mailboxes().process(-1)):
        with pytest.raises(WeftError, match="spans several processes"):
            local_program(module, stacked=[Axis("b")], process=process)


BEYOND = """"stablehlo.all_reduce"(%x) <{replica_groups = dense<GROUPS> : tensor<2x4xi64>,
    channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> ({
  ^bb0(%l: tensor<f32>, %r: tensor<f32>):
    %sum = stablehlo.add %l, %r : tensor<f32>
    stablehlo.return %sum : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>"""


def test_a_device_that_there_is_not():
    module = program("%0 = " + BEYOND.replace("GROUPS", "[[0, 1, 2, 3], [4, 5, 6, 7]]"))
    pieces = [X, numbers("a")]
    with pytest.raises(WeftError, match=r"devices \[4, 5\] meet here, but devices \[6, 7\]"):
        lockstep(module, pieces)
    with pytest.raises(WeftError, match=r"devices \[4, 5\] meet here, but devices \[6, 7\]"):
        Processes(module, [Axis("b")]).run(pieces)


def test_an_axis_that_the_mesh_does_not_have():
    module = along(program(LOOP.format(work=SCALE)), [("a", "b"), ("a",)], Mesh(a=2, b=3))
    with pytest.raises(WeftError, match='the mesh has no axis "c"'):
        local_program(module, stacked=[Axis("c")])


# Text


def test_the_text_says_which_sub_axes_are_absent():
    module, _ = compiled("mlp", "tensor", Mesh(data=2, model=4), 2)
    made = Processes(module, [Axis("data")]).first
    text = tiled_text(made.tiled, made.plan)
    assert text.text.splitlines()[0].startswith(
        "tiled @main on 1x8 devices, stacked [2, 4], absent [1], arena"
    )
    again = read_tiled(text.text, text.resources)
    verify_tiled(*again)
    assert again[0].stack_dims == made.stack_dims and tiled_text(*again).text == text.text
    for wrong in ("[2]", "[1, 0]", "[0, 0]", "[-1]"):
        with pytest.raises(WeftError):
            read_tiled(text.text.replace("absent [1]", f"absent {wrong}"), text.resources)


def test_sums_fold_along_what_is_stacked(target: str):
    """Along the other axes devices meet between kernels; without kernels they always do."""
    module, _ = compiled("mlp", "tensor", Mesh(data=2, model=4), 0)
    met = {}
    for names in ((), ("data",), ("model",), ("data", "model")):
        block = Processes(module, [Axis(n) for n in names]).first.tiled.block
        met[names] = sum(isinstance(i, Collective) for i in all_items(block))
    if target == "numpy":
        assert {*met.values()} == {met[()]}
    else:
        assert met["data", "model"] == 0 < met["data",] and met["model",] < met[()]
        assert met["data",] + met["model",] == met[()], "each is along one axis"
