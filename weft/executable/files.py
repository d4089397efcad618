"""Saving and loading executables: a container of signature, tiled text and constants."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from weft.errors import Unsupported, WeftError
from weft.executable.container import TARGET, Container
from weft.executable.container_writing import Section, write_container
from weft.executable.executable import Executable
from weft.executable.items import Host, Launch, Start, all_items, with_kernels
from weft.executable.read import read_tiled
from weft.executable.signature import Signature
from weft.executable.verify import verify_tiled
from weft.ir.module import walk
from weft.ir.write import node_text
from weft.kernels.flow import ControlFlow
from weft.kernels.group import AnyKernel
from weft.kernels.kernel import Kernel
from weft.ops.custom_calls.callbacks import calls_python


def save(
    path: str | os.PathLike[str],
    executable: Executable,
    signature: Signature,
    by: str,
    packed: Callable[[Sequence[AnyKernel]], Mapping[str, bytes]] | None = None,
) -> None:
    """Write an executable to a file, with native code if `packed`."""
    listed = sections(executable, signature)
    if packed is not None:
        parts = packed(untuned(executable).kernels())
        listed += [Section(kind, data, executable.target) for kind, data in parts.items()]
    write_container(path, listed, features(executable), by)


def features(executable: Executable) -> tuple[str, ...]:
    """The format features that a reader of the program must support."""
    items = [*all_items(executable.tiled.block)]
    launched = [item.kernel for item in items if isinstance(item, Launch)]
    uses = {
        "asynchronous": any(isinstance(item, Start) for item in items),
        "flows": any(isinstance(kernel, ControlFlow) for kernel in launched),
    }
    return tuple([name for name, used in uses.items() if used])


def sections(executable: Executable, signature: Signature) -> list[Section]:
    """The sections of a file."""
    return [Section("signature", str(signature).encode()), *program_sections(executable)]


def program_sections(executable: Executable) -> list[Section]:
    """The sections of the program; an error if it calls Python functions."""
    _refuse_callbacks(executable)
    text = untuned(executable).text()
    return [
        Section("tiled", text.text.encode()),
        Section("note", executable.target.encode(), TARGET),
        *[Section("constant", held, name) for name, held in text.resources.items()],
    ]


def untuned(executable: Executable) -> Executable:
    """The executable without options tuned on this machine."""
    # The file may be loaded on another machine, and its bytes must not depend on measurements.

    def plain(kernel: AnyKernel) -> AnyKernel:
        if not isinstance(kernel, Kernel) or not kernel.schedule.options:
            return kernel
        return replace(kernel, schedule=replace(kernel.schedule, options=()))

    tiled = replace(executable.tiled, block=with_kernels(executable.tiled.block, plain))
    return replace(executable, tiled=tiled)


def read(container: Container) -> Executable:
    """Load and verify an executable: no kernel accesses memory outside of its buffers."""
    target = container.text("note", TARGET)
    try:
        tiled, plan = read_tiled(container.text("tiled"), container.constants)
        verify_tiled(tiled, plan)
        executable = Executable(tiled, plan, target)
        _refuse_callbacks(executable)
    except WeftError as error:
        if error.message.startswith(container.where):  # the file is named already
            raise
        raise WeftError(f"{container.where}: {error.message}", help=error.help) from None
    return executable


def _refuse_callbacks(executable: Executable) -> None:
    """Raise for Python callbacks, which cannot be saved; a file that names one is forged."""
    hosts = [item for item in all_items(executable.tiled.block) if isinstance(item, Host)]
    functions = [n for f in executable.tiled.module.functions.values() for n in walk(f.body)]
    inside = [n for i in hosts for region in i.site.node.regions for n in walk(region)]
    for node in (*[item.site.node for item in hosts], *inside, *functions):
        if calls_python(node.op):
            raise Unsupported(
                "a program that calls Python functions cannot be saved",
                help="leave out callbacks and debug prints, or compile it where it runs",
                loc=node.loc,
                node=node_text(node),
            )
