"""The machine that this process runs on: its GPUs by NVML or PyTorch, or else its processor."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weft.machine.known import machine
from weft.machine.machine import Figure, Machine
from weft.records import dataclass

# Parts of NVML's device names, the most specific first, and the machines they belong to.
_NAMES = {
    "GB300": "gb300",
    "GB200": "gb200",
    "B300": "gb300",
    "B200": "b200",
    "H200": "h200",
    "H100": "h100",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its driver describes it."""

    name: str
    memory: int  # bytes
    capability: str
    fabric: str = ""  # cluster and clique of NVLink over several hosts; empty without one
    host: str = ""


@dataclass(frozen=True, slots=True)
class DetectedMachine:
    """A machine, its devices, and notes on how it was detected."""

    machine: Machine
    devices: tuple[Gpu, ...]
    notes: tuple[str, ...]


def machine_here() -> DetectedMachine:
    """This machine: a known one with the driver's figures, or the host, with a note why."""
    devices, notes = gpus()
    if not devices:
        return DetectedMachine(_host(), (), tuple(notes))
    first = devices[0]
    known = known_machine(first)
    if known is None:
        notes.append(f"{first.name} is not among the known machines; costed as h100")
    domains, how = fast_domains(devices)
    notes.append(how)
    base = machine(known or "h100")  # as it was calibrated, or as it is shipped
    figures = tuple(
        Figure(f.key, "measured", "as the driver says") if f.key == "device.memory" else f
        for f in base.figures
    )
    detected = replace(
        base,
        name=f"{len(devices)}x{known or first.name}",
        memory=min(device.memory for device in devices),
        capability=first.capability,
        figures=figures,
    )
    return DetectedMachine(detected.with_domains(domains), devices, tuple(notes))


def known_machine(device: Gpu) -> str | None:
    """The name of the machine that a GPU is one of, if it is known."""
    return next((name for text, name in _NAMES.items() if text in device.name), None)


def fast_domains(devices: Sequence[Gpu]) -> tuple[list[int], str]:
    """The fast domain of every device: by fabric, if every one of them has one, else by host."""
    if all(device.fabric for device in devices):
        keys, how = [device.fabric for device in devices], "fast domains are by NVLink fabric"
    else:
        keys, how = [device.host for device in devices], "fast domains are by host: no fabric ids"
    order = [*dict.fromkeys(keys)]
    return [order.index(key) for key in keys], how


def gpus() -> tuple[tuple[Gpu, ...], list[str]]:
    """The GPUs that NVML lists, or why there are none."""
    try:
        import pynvml
    except ImportError:
        if not Path("/proc/driver/nvidia/version").exists():
            return (), ["no NVIDIA driver is loaded: this is a machine without GPUs"]
        text = "an NVIDIA driver is loaded, but its Python package is missing"
        note = f"{text}: pip install nvidia-ml-py"
        devices = _by_torch()
        return devices, [f"{note}; these GPUs are PyTorch's" if devices else note]
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (), [
            f"NVML does not start ({error}): load the NVIDIA driver (nvidia-smi tells the same), "
            "or give a container its GPUs (docker run --gpus all)"
        ]
    try:
        notes: list[str] = []
        count = pynvml.nvmlDeviceGetCount()
        found = [_device(pynvml, pynvml.nvmlDeviceGetHandleByIndex(n), notes) for n in range(count)]
        return tuple(found), [*dict.fromkeys(notes)] if count else ["the driver lists no GPU"]
    finally:
        pynvml.nvmlShutdown()


def _by_torch() -> tuple[Gpu, ...]:
    """The GPUs that PyTorch can use, if it is installed."""
    if find_spec("torch") is None:
        return ()
    import torch

    devices = []
    for n in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(n)
        capability = f"{about.major}.{about.minor}"
        devices.append(Gpu(about.name, about.total_memory, capability, "", socket.gethostname()))
    return tuple(devices)


def _device(nvml: Any, handle: Any, notes: list[str]) -> Gpu:
    name = nvml.nvmlDeviceGetName(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        name.decode() if isinstance(name, bytes) else str(name),
        int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        f"{major}.{minor}",
        _fabric(nvml, handle, notes),
        socket.gethostname(),
    )


def _fabric(nvml: Any, handle: Any, notes: list[str]) -> str:
    """Cluster and clique of a device; empty where there is none, or the driver is too old."""
    try:
        if hasattr(nvml, "nvmlDeviceGetGpuFabricInfoV"):
            info = nvml.c_nvmlGpuFabricInfoV_t()
            nvml.nvmlDeviceGetGpuFabricInfoV(handle, nvml.byref(info))
        else:
            info = nvml.nvmlDeviceGetGpuFabricInfo(handle)
    except (nvml.NVMLError, AttributeError, TypeError):
        notes.append("the driver is too old to tell NVLink fabrics; devices are grouped by host")
        return ""
    cluster = bytes(info.clusterUuid) if not isinstance(info.clusterUuid, str) else b""
    return f"{cluster.hex()}/{info.cliqueId}" if any(cluster) else ""


def _host() -> Machine:
    """The host, as it was calibrated or as it is shipped, with this computer's memory."""
    base = machine("host")
    size = memory_here()
    if size is None:
        return base
    figure = Figure("device.memory", "measured", "as the system says")
    figures = tuple(figure if f.key == figure.key else f for f in base.figures)
    return replace(base, memory=size, figures=figures)


def memory_here() -> int | None:
    """The bytes of this computer's memory, where the system tells them."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def processor_here() -> str:
    """The name of this computer's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
