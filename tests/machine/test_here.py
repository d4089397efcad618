"""This machine: GPUs by NVML, fast domains by fabric or host, and messages where there are none."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from weft.machine import here
from weft.machine.here import Gpu, fast_domains, gpus, machine_here


class NVMLError(Exception):
    """As the package has it."""


def nvml(name: str = "NVIDIA H200", count: int = 2, **changes: object) -> SimpleNamespace:
    """A driver with some GPUs, as its Python package shows it."""
    fabric = SimpleNamespace(clusterUuid=bytes(16), cliqueId=0)
    usual: dict[str, object] = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: count,
        "nvmlDeviceGetHandleByIndex": lambda n: n,
        "nvmlDeviceGetName": lambda handle: name,
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=150 << 30),
        "nvmlDeviceGetGpuFabricInfo": lambda handle: fabric,
    }
    return SimpleNamespace(**usual | changes)


@pytest.fixture
def driver(monkeypatch):
    return lambda fake: monkeypatch.setitem(sys.modules, "pynvml", fake)


def failing(*args: object) -> None:
    raise NVMLError("Driver Not Loaded")


def test_gpus_make_a_known_machine(driver):
    driver(nvml())
    found = machine_here()
    assert found.machine.name == "2xh200" and found.machine.memory == 150 << 30
    assert found.machine.table == "sm_90" and found.machine.capability == "9.0"
    assert found.machine.domain_ids == (0, 0) and found.machine.devices == 2
    assert found.machine.provenance("device.memory") == "measured"
    assert "by host" in found.notes[-1]


def test_an_unknown_gpu_says_what_stands_for_it(driver):
    driver(nvml(b"NVIDIA X9000", 1))
    found = machine_here()
    assert "NVIDIA X9000 is not among the known machines" in found.notes[0]


def test_old_drivers_group_by_host(driver):
    driver(nvml(nvmlDeviceGetGpuFabricInfo=failing))
    devices, notes = gpus()
    assert [device.fabric for device in devices] == ["", ""]
    assert notes == ["the driver is too old to tell NVLink fabrics; devices are grouped by host"]


def test_a_driver_that_is_not_loaded_says_what_to_do(driver):
    driver(nvml(nvmlInit=failing))
    found = machine_here()
    assert found.machine.name == "host" and not found.devices
    assert "Driver Not Loaded" in found.notes[0] and "nvidia-smi" in found.notes[0]


def test_a_missing_package_is_named(driver, monkeypatch, tmp_path):
    driver(None)
    assert gpus()[1][0].startswith(("no NVIDIA driver", "an NVIDIA driver is loaded"))
    monkeypatch.setattr(here, "Path", lambda text: tmp_path)
    assert gpus()[1] == [
        "an NVIDIA driver is loaded, but its Python package is missing: pip install nvidia-ml-py"
    ]


def test_no_gpu_at_all(driver):
    driver(nvml(count=0))
    assert machine_here().notes == ("the driver lists no GPU",)


@pytest.mark.parametrize(
    ("fabrics", "hosts", "domains", "how"),
    [
        ("aabb", "wxyz", [0, 0, 1, 1], "fabric"),
        ("aa b", "wxyz", [0, 1, 2, 3], "host"),  # one has none: none counts
        ("    ", "wwxx", [0, 0, 1, 1], "host"),
    ],
)
def test_domains_are_by_fabric_if_all_have_one(fabrics, hosts, domains, how):
    pairs = zip(fabrics, hosts, strict=True)
    devices = [Gpu("H100", 1, "9.0", fabric.strip(), host) for fabric, host in pairs]
    found, text = fast_domains(devices)
    assert found == domains and how in text
