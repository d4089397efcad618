"""The report: one file with its data inside, which says what the prediction says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import weft
from tests.report.browser import browser, find_browser
from weft import P
from weft.cli import main
from weft.errors import WeftError
from weft.report.page import page, script_json

EVIL = (
    "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
)


def step(w1, w2, x):
    return jnp.maximum(x @ w1, 0) @ w2


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report of two products on 8 devices, and the data in it."""
    path = tmp_path_factory.mktemp("report") / "out.html"
    args = [np.ones(shape, np.float32) for shape in ((256, 512), (512, 256), (64, 256))]
    shardings = (P(None, "model"), P("model", None), P("data", None))
    made = weft.compile(step, *args, mesh=weft.Mesh(data=2, model=4), in_shardings=shardings)
    prediction = made.report(path, "8xh100", others=["8xh200"])
    return path, data_of(path.read_text()), prediction


def data_of(text: str) -> dict:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    return json.loads(found[1])


def test_the_page_is_whole_and_fetches_nothing(written):
    text = written[0].read_text()
    assert not re.search(r"""(src|href)=["'](?!#)""", text) and "@import" not in text
    assert set(re.findall(r"https?://[^\s\"')]+", text)) == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xhtml",
    }


def test_the_data_are_those_of_the_prediction(written):
    _, data, prediction = written
    assert data["mesh"] == [["data", 2], ["model", 4]] and data["devices"] == 8
    assert data["step"]["seconds"] == prediction.seconds
    assert data["step"]["peak"] == prediction.memory.peak
    assert len(data["timeline"]["events"]) == len(prediction.timeline.events)
    assert [row["machine"]["name"] for row in data["whatif"]] == ["8xh100", "8xh200"]
    assert max(held for _, held in data["memory"]) == prediction.timeline.peak


def test_tensors_have_their_pieces(written):
    rows = {row["names"][0]: row for layer in written[1]["layers"] for row in layer["rows"]}
    w1 = next(row for name, row in rows.items() if "w1" in name)
    assert w1["axes"] == [[], ["model"]] and w1["pieces"] == [1, 4] and w1["local"] == [256, 128]


def test_collectives_have_their_line(written):
    (row,) = written[1]["collectives"]
    assert row["kind"] in ("all_reduce", "reduce_scatter") and row["over"] == "model"
    assert "test_page.py" in row["place"] and "jnp.maximum" in row["source"]
    assert "partial sum" in row["reasons"][0] and "`model`" in row["reasons"][0]


def test_names_cannot_end_the_script(written):
    data = written[1] | {"program": EVIL}
    text = page(data)
    assert "<img" not in text and text.count("</script>") == 2
    assert data_of(text)["program"] == EVIL
    assert json.loads(script_json(["<!--", "\u2028", "&"])) == ["<!--", "\u2028", "&"]


def test_a_folder_that_is_not_there(written, tmp_path):
    made = weft.compile(lambda x: x + 1, np.ones(4, np.float32))
    with pytest.raises(WeftError, match="cannot write"):
        made.report(tmp_path / "none" / "out.html", others=[])


def test_the_command_writes_page_and_timeline(tmp_path, capsys, monkeypatch):
    page_, trace = tmp_path / "out.html", tmp_path / "trace.json"
    line = ["report", "examples/sharded_mlp.mlir", "--machine=8xh100", "--whatif=8xh100", "--json"]
    monkeypatch.chdir(Path(__file__).parents[2])
    assert main([*line, "-o", str(page_), "--timeline", str(trace)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["written"] == str(page_) and shown["seconds"] > 0
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["ph"] for event in events} >= {"M", "X", "C"}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events if event["ph"] == "X")
    assert data_of(page_.read_text())["program"] == "sharded_mlp.mlir"


@pytest.mark.browser
@pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")
def test_in_a_browser(written, tmp_path):
    path, data, _ = written
    evil = tmp_path / "evil.html"
    renamed = [layer | {"name": EVIL} for layer in data["layers"]]
    evil.write_text(page(data | {"program": EVIL, "layers": renamed}))
    with browser(find_browser()) as tab:
        colours = set()
        for dark in (False, True):
            for width, phone in ((1440, False), (390, True)):
                tab.open(path, width, 900, dark=dark, phone=phone)
                assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
                colours.add(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(colours) == 2
        tab.open(path, 1440, 900)
        used(tab)
        tab.open(evil, 1440, 900)
        assert "weft report" in tab.evaluate("document.title")
        assert tab.evaluate("document.querySelector('h1').textContent") == EVIL
        assert tab.evaluate("document.querySelectorAll('img').length") == 0
        assert tab.problems() == []


def used(tab):
    """The parts of the page answer to the mouse."""
    assert tab.evaluate("document.querySelectorAll('.device').length") == 8
    tab.click("#collectives tbody tr")
    tab.wait("document.querySelector('tr.why p').textContent.includes('partial sum')")
    pieces = "[...document.querySelectorAll('.device code')].map(e => e.textContent).join()"
    before = tab.evaluate(pieces)
    tab.click(".tensor[aria-pressed=false]")
    tab.wait(f"{pieces} !== {json.dumps(before)}")
    tab.click(".tools button")
    assert tab.evaluate("view.to - view.from < 0.6 * data.timeline.seconds")
    tab.evaluate("move(0, data.timeline.seconds)")
    first = "const e = data.timeline.events[0]; const width = timelineCanvas.clientWidth;"
    found = "eventAt(xOf(e[1] + e[2] / 2, width), TOP + 8) === e"
    assert tab.evaluate(f"(() => {{ {first} return {found}; }})()")
    tab.click("#theme")
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
