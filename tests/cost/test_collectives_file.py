"""Files of collectives: columns, errors by line, and where each estimate comes from."""

from __future__ import annotations

import csv
import json

import pytest

from weft.cli import main
from weft.cost.collectives_file import predict_collectives, read_collectives
from weft.cost.measured import TABLE
from weft.errors import WeftError

HEADER = "machine,op,dtype,groups,group_size,pattern,bytes"
ROW = "sm_90,all-reduce,f32,1,8,,4194304"


@pytest.fixture
def file(tmp_path):
    def put(*lines: str, encoding: str = "utf-8"):
        path = tmp_path / "rows.csv"
        path.write_text("\n".join(lines) + "\n", encoding=encoding)
        return path

    return put


@pytest.mark.parametrize(
    ("header", "row", "problem", "help"),
    [
        (HEADER.replace("op,", ""), ROW, "line 1: the column op is missing", "machine, op"),
        (HEADER + ",color", ROW + ",red", "line 1: the column 'color' is unknown", "bytes"),
        (HEADER + ",op", ROW + ",x", "line 1: the column 'op' is there twice", "columns"),
        (HEADER, ROW + ",7", "line 3: 8 cells, but 7 columns", "one cell"),
        (HEADER, ROW.replace("sm_90", "sm_91x"), "line 3: unknown machine 'sm_91x'", "mean sm_90?"),
        (HEADER, ROW.replace("sm_90", "h10"), "line 3: unknown machine 'h10'", "mean h100?"),
        (HEADER.replace("dtype", "dtyp"), ROW, "line 1: the column 'dtyp'", "mean dtype?"),
        (HEADER, ROW.replace("all-reduce", "all-redux"), "line 3: unknown op", "all-reduce?"),
        (HEADER, ROW.replace("f32", "f99"), "line 3: unknown dtype 'f99'", "f32"),
        (HEADER, ROW.replace(",8,,", ",8,ring,"), "line 3: the pattern of all-reduce", "empty"),
        (HEADER, "sm_90,collective-permute,f32,1,8,,1", "line 3: the pattern of", "mutual"),
        (HEADER, ROW.replace("4194304", "many"), "line 3: bytes is 'many'", "whole number"),
        (HEADER, ROW.replace("4194304", "0"), "line 3: bytes is '0'", "at least 1"),
        (HEADER, ROW.replace("1,8", "-1,8"), "line 3: groups is '-1'", "whole number"),
        (HEADER + ",bytes_per_second", ROW + ",fast", "line 3: bytes_per_second is", "above 0"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(file, header, row, problem, help):
    good = ROW + "," * (header.count(",") - HEADER.count(","))
    path = file(header, good, row)
    with pytest.raises(WeftError) as caught:
        read_collectives(path)
    assert f"{path}: {problem}" in caught.value.message and help in caught.value.help


def test_groups_of_one_device_send_nothing(file):
    (made,) = predict_collectives(read_collectives(file(HEADER, ROW.replace("1,8,", "8,1,"))))
    assert made.estimate.seconds == made.estimate.high == 0
    assert made.estimate.source == "nothing is sent: each group is one device"


def test_an_empty_file_and_a_missing_one(file, tmp_path):
    with pytest.raises(WeftError, match="line 1: the column machine is missing"):
        read_collectives(file(""))
    with pytest.raises(WeftError, match="cannot read"):
        read_collectives(tmp_path / "none.csv")
    assert read_collectives(file(HEADER)) == []


def test_a_mark_of_excel_blank_lines_and_empty_rates(file):
    path = file(HEADER + ",bytes_per_second", ROW + ",", "", ROW + ",5e10", encoding="utf-8-sig")
    assert [row.rate for row in read_collectives(path)] == [None, 5e10]


@pytest.mark.parametrize(
    ("row", "source"),
    [
        (ROW, "measured on sm_90"),
        (ROW.replace("sm_90", "h100"), "measured on sm_90"),
        (ROW.replace("sm_90", "8xh200"), "measured on sm_90"),
        (ROW.replace("4194304", "5000000"), "interpolated from sm_90"),
        (ROW.replace("4194304", "9" * 12), "extrapolated by latency and bandwidth from sm_90"),
        (ROW.replace("1,8,", "1,64,"), "domains"),
        (ROW.replace("sm_90", "tpu-v5p"), "modelled as a ring over ici"),
        ("sm_103,all-gather,f32,6,12,,1000000", "interpolated from sm_103"),
    ],
)
def test_every_estimate_has_a_source(file, row, source):
    (made,) = predict_collectives(read_collectives(file(HEADER, row)))
    assert source in made.estimate.source
    assert 0 < made.estimate.low <= made.estimate.seconds <= made.estimate.high


def test_the_table_itself_has_no_error_and_a_row_for_each(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    with TABLE.open(newline="") as lines:
        rows = list(csv.DictReader(lines))[::50]
    path, out = tmp_path / "part.csv", tmp_path / "out.json"
    with path.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    assert main(["cost", str(path), "--json", str(out)]) == 0
    shown = capsys.readouterr().out
    assert f"{len(rows)} collectives predicted, written to {out}" in shown
    found = json.loads(out.read_text())
    assert len(found) == len(rows)
    for given, made in zip(rows, found, strict=True):
        actual = int(given["bytes"]) / float(given["bytes_per_second"])
        assert made["seconds"] == pytest.approx(actual, rel=1e-3)
        assert made["low"] <= made["seconds"] <= made["high"] and made["source"]
        assert str(made["bytes"]) == given["bytes"] and made["machine"] == given["machine"]


def test_json_on_the_screen(file, capsys):
    assert main(["cost", str(file(HEADER, ROW)), "--json", "-"]) == 0
    (made,) = json.loads(capsys.readouterr().out)
    assert {"seconds", "low", "high", "source"} < set(made)
