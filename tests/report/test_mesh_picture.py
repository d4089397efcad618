"""The picture of a mesh: what is drawn where, and in which colour."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from weft.ir.types import TensorType, tensor
from weft.mesh import Mesh, parse_sharding
from weft.report.mesh_picture import mesh_picture
from weft.report.svg import PAPER, color

SVG = "{http://www.w3.org/2000/svg}"
GOLDEN = Path(__file__).parent.parent / "golden" / "report"


def drawn(type: TensorType, dims: str, mesh: Mesh, name: str = "%3") -> ET.Element:
    return ET.fromstring(mesh_picture(name, type, parse_sharding(f"<@mesh, [{dims}]>"), mesh))


def texts(picture: ET.Element) -> list[str]:
    return [element.text or "" for element in picture.iter(f"{SVG}text")]


def fills(picture: ET.Element) -> list[str]:
    """The colours of the devices: the rectangles with round corners that are no padding."""
    rects = [r for r in picture.iter(f"{SVG}rect") if r.get("rx") == "7"]
    return [r.attrib["fill"] for r in rects if r.attrib["fill"].startswith("#")]


def test_every_device_and_its_slice_are_there():
    picture = drawn(tensor(8, 16), '{"x"}, {"y"}', Mesh(x=2, y=4))
    found = texts(picture)
    assert [t for t in found if t.startswith("device ")] == [f"device {n}" for n in range(8)]
    assert "[0:4, 0:4]" in found and "[4:8, 12:16]" in found
    assert "dim 0 · 8" in found and "dim 1 · 16" in found
    assert "8 split by x: 2 x 4" in found and "16 split by y: 4 x 4" in found


def test_equal_colours_are_equal_pieces():
    whole = fills(drawn(tensor(8, 16), "{}, {}", Mesh(x=2, y=4)))
    assert len(whole) == 8 and len(set(whole)) == 1
    assert min(bytes.fromhex(whole[0][1:])) > 0xC0  # pale: it is the same everywhere
    half = fills(drawn(tensor(8, 16), '{"x"}, {}', Mesh(x=2, y=4)))
    assert half[:4] == [half[0]] * 4 and half[4:] == [half[4]] * 4 and half[0] != half[4]
    assert len(set(fills(drawn(tensor(8, 16), '{"x"}, {"y"}', Mesh(x=2, y=4))))) == 8
    assert len(set(fills(drawn(tensor(4, 4, 8), '{"x"}, {"y"}, {"z"}', Mesh(x=2, y=2, z=2))))) == 8


def test_padding_is_hatched_and_said():
    picture = drawn(tensor(5), '{"x"}', Mesh(x=4))
    hatched = [r for r in picture.iter(f"{SVG}rect") if r.get("fill") == "url(#padding)"]
    assert len(hatched) == 3  # the legend, half of device 2, all of device 3
    found = texts(picture)
    assert "3 of padding" in found and "+ [1] padding" in found and "nothing" in found


def test_further_axes_are_blocks():
    found = texts(drawn(tensor(4, 4), '{"x"}, {"z"}', Mesh(x=2, y=2, z=3)))
    assert [t for t in found if t.startswith("z ")] == ["z 0", "z 1", "z 2"]
    assert found.count("y →") == 3 and found.count("← x") == 3


@pytest.mark.parametrize("size", [4, 8, 20])
def test_equal_shards_are_drawn_equal(size):
    picture = drawn(tensor(size), '{"x"}', Mesh(x=4))
    parts = [r for r in picture.iter(f"{SVG}rect") if r.get("stroke") == PAPER]
    assert len(parts) == 4 and len({r.attrib["fill"] for r in parts}) == 4
    assert len({(r.attrib["width"], r.attrib["height"]) for r in parts}) == 1


def test_a_large_mesh_is_drawn_in_part():
    picture = drawn(tensor(4096, 4096), '{"x"}, {"y", "z"}', Mesh(x=64, y=64, z=8))
    assert "and 32,512 more devices, in the same pattern" in texts(picture)
    assert len(fills(picture)) == 256
    assert len(ET.tostring(picture)) < 400_000


def test_devices_have_the_ids_of_the_mesh():
    mesh = Mesh((("x", 2),), device_ids=(5, 3))
    assert [t for t in texts(drawn(tensor(4), '{"x"}', mesh)) if "device " in t] == [
        "device 5",
        "device 3",
    ]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (7, 1, 2, 3)])
def test_any_shape_is_drawn(shape):
    dims = ", ".join(['{"x"}', *["{}"] * (len(shape) - 1)]) if shape else ""
    drawn(tensor(*shape), dims, Mesh(x=2, y=2), name="a < b & c")


def test_the_file_needs_nothing_else():
    text = mesh_picture("%1", tensor(4), parse_sharding('<@mesh, [{"x"}]>'), Mesh(x=2))
    assert text.count("http") == 1  # the name of SVG itself
    assert "<script" not in text and "<image" not in text and "@import" not in text


def test_the_picture_is_this(golden):
    sharding = parse_sharding('<@mesh, [{"data"}, {"model"}]>')
    text = mesh_picture("%6", tensor(16, 10), sharding, Mesh(data=2, model=4))
    golden(GOLDEN / "mesh_picture.svg", text)


def test_colours():
    assert color(1, 0, 0) == "#ffffff"
    assert color(0, 0, 0) == "#000000"
    assert color(0.628, 0.2577, 29.23) == "#ff0000"
