"""Machine files: read whole, based on others, and refused with the file and the key."""

from __future__ import annotations

import os

import numpy as np
import pytest

from weft.errors import WeftError
from weft.machine import H100, HOST, machine, user_folder

OWN = """
based_on = "h100"
about = "ours"

[device]
memory = ["40GiB", "measured", "a slice of one"]

[rates]
bf16 = [300e12, "guessed"]

[[caches]]
name = "L2"
size = ["50MiB", "published"]
bandwidth = ["5TB/s", "measured"]
"""


@pytest.fixture
def write(tmp_path):
    def put(text: str, name: str = "own.toml") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return put


def test_a_file_of_the_users_is_based_on_a_known_machine(write):
    own = machine(write(OWN))
    assert (own.name, own.about, own.memory) == ("own", "ours", 40 << 30)
    assert dict(own.rates)["bf16"] == 300e12 and dict(own.rates)["f8"] == dict(H100.rates)["f8"]
    assert own.links == H100.links and own.table == "sm_90"
    assert own.provenance("device.memory") == "measured"
    assert own.provenance("rates.f8") == "measured" and own.provenance("rates.bf16") == "guessed"
    assert own.caches[0].size == 50 << 20


def test_a_folder_with_one_file_names_it(write, tmp_path):
    write(OWN)
    assert machine(str(tmp_path)).name == "own"
    write(OWN, "other.toml")
    with pytest.raises(WeftError, match="has 2 machine files") as caught:
        machine(str(tmp_path))
    assert "other.toml, own.toml" in caught.value.help


def test_an_edited_file_is_read_anew(write):
    path = write(OWN)
    assert machine(path).memory == 40 << 30
    write(OWN.replace("40GiB", "20GiB"))
    os.utime(path, ns=(1, 1))
    assert machine(path).memory == 20 << 30


def test_the_users_folder_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = user_folder()
    assert folder == tmp_path / "weft" / "machines"
    folder.mkdir(parents=True)
    (folder / "host.toml").write_text('based_on = "host"\n[rates]\nf32 = ["321G", "measured"]\n')
    assert dict(machine("host").rates)["f32"] == 321e9
    assert dict(HOST.rates)["f32"] != 321e9, "what Weft brings along stays as it is"
    assert dict(machine("4xhost").rates)["f32"] == 321e9


@pytest.mark.parametrize(
    ("change", "problem", "help"),
    [
        (("[device]", "[device"), "is not TOML", "correct the file"),
        (('["40GiB", "measured", "a slice of one"]', '"40GiB"'), "device.memory", "guessed"),
        (('"measured", "a slice', '"rumoured", "a slice'), "device.memory", "measured, published"),
        (("memory =", "memori ="), "device.memori: unknown key", "did you mean memory?"),
        (("40GiB", "lots"), "device.memory: cannot parse 'lots' as a memory size", "80GiB"),
        (("[300e12,", "[true,"), "rates.bf16: True is not a number", "3.0e12"),
        (("[300e12,", "[nan,"), "rates.bf16: nan is not a number", "3.0e12"),
        (("[300e12,", "[-1,"), "rates.bf16: -1 is not positive", "above 0"),
        (("bf16 =", "bf17 ="), "rates.bf17: unknown key", "did you mean bf16?"),
        (('"h100"', '"h1000"'), "based_on: unknown machine 'h1000'", "did you mean h100?"),
        (('based_on = "h100"\n', ""), "bandwidth is missing", "vector"),
        (('"ours"', "7"), "about: 7 is not a text", "in quotes"),
        (('about = "ours"', 'kind = "abacus"'), "unknown kind 'abacus'", "cpu, gpu"),
        (("[[caches]]", "[caches]"), "caches: not a list", "[[caches]]"),
        (('size = ["50MiB", "published"]\n', ""), "caches.0: size is missing", "give size"),
        (('[rates]', '[efficiency]\nmemory = [[[2, 1], [1, 1]], "measured"]\n[rates]'),
         "efficiency.memory: the sizes [2, 1] do not grow", "[[1e6, 0.2]"),
        (('[rates]', '[efficiency]\nmemory = [[["1M", 1]], "measured"]\n[rates]'),
         "efficiency.memory: [['1M', 1]] is not a list of sizes and shares", "[[1e6, 0.2]"),
        (("[rates]", '[[links]]\nlatency = [0, "guessed"]\n[rates]'), "bandwidth is", "launch"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_the_file_and_the_key(write, change, problem, help):
    path = write(OWN.replace(*change))
    with pytest.raises(WeftError) as caught:
        machine(path)
    assert problem in caught.value.message and help in caught.value.help
    assert path in caught.value.message


LINKS = """
[[links]]
bandwidth = ["1G", "guessed"]
latency = [1e-6, "guessed"]
launch = [1e-6, "guessed"]
"""


@pytest.mark.parametrize("devices", [1, 2, 64])
def test_links_join_so_many_devices(write, devices):
    near = f"{LINKS}devices = {devices}\ntorus = [1, {devices}]\n"
    links, _ = machine(write(f"{OWN}{near}{LINKS}")).links
    assert (links.devices, links.torus) == (devices, (1, devices))


@pytest.mark.parametrize("wrong", ["0", "-3", "2.5", '"two"', "true"])
def test_numbers_of_devices_and_sides_are_checked(write, wrong):
    with pytest.raises(WeftError, match=r"links.0.devices: .* is not a number of devices"):
        machine(write(f"{OWN}{LINKS}devices = {wrong}\n"))
    with pytest.raises(WeftError, match=r"links.0.torus: .* is not a list of sides"):
        machine(write(f"{OWN}{LINKS}torus = [4, {wrong}]\n"))


def test_a_circle_of_files_is_an_error(write, tmp_path):
    one, other = tmp_path / "one.toml", tmp_path / "other.toml"
    one.write_text(f'based_on = "{other}"')
    other.write_text(f'based_on = "{one}"')
    with pytest.raises(WeftError, match="leads back"):
        machine(str(one))


def test_a_missing_file_is_an_error():
    with pytest.raises(WeftError, match="no machine file nowhere.toml"):
        machine("nowhere.toml")


@pytest.mark.parametrize(
    ("text", "devices", "domain", "network"),
    [
        ("h100", None, 8, 25e9),
        ("8xh100", 8, 8, 25e9),
        ("4xh100", 4, 4, 25e9),
        ("16xh100", 16, 8, 25e9),
        ("32x(8xh200)@400G", 256, 8, 25e9),
        ("32 x (8 x H200) @ 800G", 256, 8, 50e9),
        ("2x(72xgb200)@100GB/s", 144, 72, 50e9),
        ("4x(36xgb300)", 144, 36, 50e9),
        ("8xhost", 8, None, 10e9),
    ],
)
def test_so_many_of_a_machine(text: str, devices: int, domain: int, network: float):
    found = machine(text)
    assert (found.name, found.devices, found.fast_devices) == (
        text,
        devices,
        domain,
    ) or text == "h100"
    assert found.links[-1].bandwidth == pytest.approx(network)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0xh100", "at least one"),
        ("32x(8xh100", "not closed"),
        ("4x(h100)", "the number of h100 in a node is missing"),
        ("8xh10", r"unknown machine 'h10' \(in '8xh10'\)"),
        ("8xhost@400G", "has no network cards"),
        ("8xh100@quick", "'quick' is no rate of a network card"),
        ("8xh100@0G", "'0G' is no rate of a network card"),
        ("32x8xh100", r"the nodes need parentheses, as in 32x\(8xh100\)"),
        ("", "unknown machine ''"),
    ],
)
def test_a_malformed_machine_is_an_error(text: str, problem: str):
    with pytest.raises(WeftError, match=problem):
        machine(text)


def test_a_mesh_must_fit_the_machine():
    assert machine("8xh100").holding(8).devices == 8
    with pytest.raises(WeftError, match="the mesh has 16 devices, but 8xh100 has 8"):
        machine("8xh100").holding(16)
    assert H100.holding(1 << 20) is H100


def test_domains_are_given_by_all_or_by_none():
    odd = H100.with_domains((0, 1, 0, 1))
    assert odd.devices == 4
    assert odd.domains_of(np.array([0, 2, 3])).tolist() == [0, 0, 1]
    assert H100.with_domains((None, None)).domain_ids == ()
    with pytest.raises(WeftError, match="2 of 3 devices name their fast domain, device 1 does not"):
        H100.with_domains((0, None, 1))


def test_curves_hold_between_their_points():
    assert H100.bandwidth_at(1) < H100.bandwidth_at(1 << 27) < H100.bandwidth_at(1 << 34)
    assert H100.bandwidth_at(1 << 40) == H100.bandwidth and HOST.bandwidth_at(1) == HOST.bandwidth
