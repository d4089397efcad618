"""The friendly spelling, and JAX's meshes and shardings in the place of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import weft
from weft.errors import Unsupported, WeftError
from weft.mesh import Axis, DimSharding, Mesh, parse_sharding
from weft.mesh.spelling import P, as_mesh, as_sharding

ROOT = Path(__file__).parent.parent.parent
MESH = Mesh(data=2, model=4)


# Meshes


def test_axes_as_words_or_pairs():
    assert weft.Mesh(data=2, model=4) == Mesh((("data", 2), ("model", 4))) == MESH
    assert Mesh([("data", 2)], model=4) == MESH
    assert hash(Mesh(data=2, model=4)) == hash(MESH)
    assert str(MESH) == '<["data"=2, "model"=4]>'
    assert repr(MESH) == "Mesh(axes=(('data', 2), ('model', 4)), device_ids=None)"
    assert replace(MESH, device_ids=(7, 6, 5, 4, 3, 2, 1, 0)).size == 8


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mesh(x=0), "axis 'x' of size 0: an axis has a name and a size of at least 1"),
        (lambda: Mesh(x="2"), "axis 'x' of size '2': an axis has a name and a size of at least 1"),
        (lambda: Mesh([("x", 2)], x=2), "the mesh has axis 'x' twice"),
        (lambda: Mesh(4), "4 does not name the axes of a mesh"),
        (lambda: Mesh(("x", "yz")), "axis 'y' of size 'z'"),
        (
            lambda: Mesh((("x", 4),), (0, 1)),
            "the axes make 4 devices, but 2 device ids are given",
        ),
    ],
)
def test_a_mesh_that_is_none(make, message):
    with pytest.raises(WeftError) as caught:
        make()
    assert message in caught.value.message or "does not name" in caught.value.message


def test_a_mesh_of_one_device():
    assert Mesh((), (3,)).size == 1


@pytest.mark.parametrize(
    "given", [MESH, "data=2,model=4", " data = 2 , model=4", {"data": 2, "model": 4}, MESH.axes]
)
def test_as_mesh(given):
    assert as_mesh(given) == MESH


@pytest.mark.parametrize("given", ["data", "data=x", "", "data=2;model=4", 8, None])
def test_what_is_no_mesh(given):
    with pytest.raises(WeftError, match="is not a mesh") as caught:
        as_mesh(given)
    assert "data=2" in caught.value.help


# Shardings


@pytest.mark.parametrize(
    ("spec", "rank", "text"),
    [
        (P("data", None, ("data", "model")), None, None),
        (P("data", None), 2, '[{"data"}, {}]'),
        (P("data"), 3, '[{"data"}, {}, {}]'),
        (P(), 0, "[]"),
        (P(..., ("data", "model")), 2, '[{?}, {"data", "model"}]'),
        (P(P.OPEN, ("model", ...)), 2, '[{?}, {"model", ?}]'),
        (P(["model", "data"]), 1, '[{"model", "data"}]'),
        (P("model:(2)2", "model:(1)2"), 2, '[{"model":(2)2}, {"model":(1)2}]'),
        (P(("model:(1)2", "model:(2)2")), 1, '[{"model"}]'),
        (P("data", ..., priorities=(1, 0)), 2, '[{"data"}p1, {?}p0]'),
        (P(None, replicated=("model", "data")), 1, '[{}], replicated={"data", "model"}'),
        (P("data", unreduced=["model"]), 1, '[{"data"}], unreduced={"model"}'),
        (P(DimSharding((Axis("data"),), True, 2)), 1, '[{"data", ?}p2]'),
    ],
)
def test_spelled(spec, rank, text):
    if rank is None:
        with pytest.raises(WeftError, match="uses axis 'data' twice"):
            spec.sharding(3, MESH)
        return
    assert spec.sharding(rank, MESH, "mesh").body() == f"<@mesh, {text}>"
    assert spec.sharding(rank, MESH).mesh == MESH


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (P("data", None, ("x", "y")), 'P("data", None, ("x", "y"))'),
        (P(..., ("x", ...)), 'P(..., ("x", ...))'),
        (P("x:(2)4", unreduced=["y"]), 'P("x:(2)4", unreduced=("y",))'),
        (P("x", "y", priorities=(0, 1)), 'P("x", "y", priorities=(0, 1))'),
    ],
)
def test_written_as_it_is_spelled(spec, text):
    assert repr(spec) == text
    assert eval(text, {"P": P}) == spec


@pytest.mark.parametrize(
    ("make", "message", "help"),
    [
        (
            lambda: P("dta").sharding(1, MESH),
            "P(\"dta\"): the mesh has no axis 'dta'",
            "did you mean 'data'? known: data, model",
        ),
        (
            lambda: P("data", "data").sharding(2, MESH),
            'P("data", "data") uses axis \'data\' twice',
            "an axis splits one dim of a tensor, or none",
        ),
        (
            lambda: P("model", replicated=["model"]).sharding(1, MESH),
            'P("model", replicated=("model",)) uses axis \'model\' twice',
            "an axis splits one dim of a tensor, or none",
        ),
        (
            lambda: P("data", None).sharding(1, MESH),
            'P("data", None) is for 2 dims, but the tensor has 1',
            "name at most one entry for each dim",
        ),
        (
            lambda: P(None).sharding(0, MESH),
            "P(None) is for 1 dims, but the tensor has 0",
            "name at most one entry for each dim; a scalar is P()",
        ),
        (
            lambda: P("model:(2)4").sharding(1, MESH),
            'P("model:(2)4"): "model":(2)4 is not a part of an axis of size 4',
            'a part "x:(before)size" needs sizes whose product divides that of the axis',
        ),
        (
            lambda: P(3),
            "3 is not a sharding of a dim",
            'write P("data", None, ("data", "model")), or ... for a dim that is left open',
        ),
        (
            lambda: P(("data", 3)),
            "3 is not an axis of a mesh",
            'write P("data", None, ("data", "model")), or ... for a dim that is left open',
        ),
        (
            lambda: P("data", priorities=(0, 1)),
            "2 priorities for 1 dims",
            "give at most one priority for each dim; 0 is the strongest",
        ),
        (
            lambda: as_sharding(P("data"), 1),
            'P("data") has no mesh',
            "give the mesh: weft.Mesh(data=2, model=4)",
        ),
        (
            lambda: as_sharding(8, 1, MESH),
            "int 8 is not a sharding",
            'write P("data", None, ("data", "model")), or ... for a dim that is left open',
        ),
        (
            lambda: as_sharding(parse_sharding('<@mesh, [{"data"}]>'), 2, MESH),
            '<@mesh, [{"data"}]> is for 1 dims, but the tensor has 2',
            "give one dim sharding for each dim",
        ),
        (
            lambda: as_sharding(P("data").sharding(1, MESH), 1, Mesh(data=8)),
            'a sharding on the mesh <["data"=2, "model"=4]> in a program on <["data"=8]>',
            "use one mesh for the whole program",
        ),
    ],
)
def test_errors_teach(make, message, help):
    with pytest.raises(WeftError) as caught:
        make()
    assert (caught.value.message, caught.value.help) == (message, help)


def test_as_sharding():
    expected = parse_sharding('<@mesh, [{"data"}, {}]>')
    for given in (P("data"), P("data", None), ("data", None), ["data"], expected, str(expected)):
        assert as_sharding(given, 2, MESH, name="mesh") == expected
    inline = P("data").sharding(2, MESH)
    assert as_sharding(inline, 2) == inline
    assert as_sharding(inline, 2, MESH, name="mesh") == expected
    assert as_sharding(expected, 2) is expected


def test_memory_of_another_kind_is_refused():
    class Named:
        mesh, spec, memory_kind = MESH, P("data"), "pinned_host"

    with pytest.raises(Unsupported, match="pinned_host"):
        as_sharding(Named(), 1)


JAX = """
import json, sys
import jax, numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P
from weft.mesh.spelling import as_mesh, as_sharding

auto = dict(axis_types=(AxisType.Auto,) * 2)
mesh = jax.make_mesh((2, 4), ("data", "model"), **auto)
turned = Mesh(np.array(jax.devices()[::-1]).reshape(2, 4), ("data", "model"))
abstract = AbstractMesh((2, 4), ("data", "model"), **auto)
specs = [P(), P("data"), P(None, "model"), P(("model", "data")), P("data", P.UNCONSTRAINED)]
found = {"meshes": [str(as_mesh(m)) for m in (mesh, turned, abstract)], "ours": [], "theirs": []}

def constrained(x):
    for spec in specs:
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec)) + 1
    return x

text = jax.jit(constrained).lower(jax.ShapeDtypeStruct((8, 8), "float32")).as_text()
for line in text.splitlines():
    if "sdy.sharding_constraint" in line:
        found["theirs"].append(line[line.index("<@") : line.rindex(">") + 1].split(" : ")[0])
for spec in specs:
    named = [NamedSharding(m, spec) for m in (mesh, abstract)]
    ours = {as_sharding(s, 2, name="mesh").body() for s in named}
    ours |= {as_sharding(spec, 2, m, name="mesh").body() for m in (mesh, abstract)}
    found["ours"].append(sorted(ours))
unreduced_sharding = as_sharding(P(None, unreduced={"model"}), 1, mesh, name="mesh")
found["unreduced"] = unreduced_sharding.body()
try:
    as_sharding(jax.sharding.SingleDeviceSharding(jax.devices()[0]), 1, mesh)
except Exception as error:
    found["refused"] = str(error)
print(json.dumps(found))
"""


def test_jax_is_understood():
    where = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    line = [sys.executable, "-c", JAX]
    done = subprocess.run(line, cwd=ROOT, env=where, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    plain = '<["data"=2, "model"=4]>'
    turned = '<["data"=2, "model"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>'
    assert found["meshes"] == [plain, turned, plain]
    assert found["ours"] == [[theirs] for theirs in found["theirs"]]
    assert found["ours"][-1] == ['<@mesh, [{"data"}, {?}]>']
    assert found["unreduced"] == '<@mesh, [{}], unreduced={"model"}>'
    assert "SingleDeviceSharding" in found["refused"]
    assert "is not a sharding" in found["refused"]
