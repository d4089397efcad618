"""Loading saved executables, on machines that did not compile them.

A program that this installation has verified and emitted before is in the user's cache, with its
machine code: then its kernels are not parsed, and no emitter is imported.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft.cache.entry import Key
from weft.cache.store import the_store
from weft.emit.numpy import host_of
from weft.errors import WeftError, warn
from weft.executable import call
from weft.executable.container import TARGET, Container, open_container
from weft.executable.read import read_tiled
from weft.executable.version import __version__
from weft.ir.gc_pause import without_gc
from weft.recording import recorder
from weft.run import LocalProgram, run
from weft.targets import code_identity, target_named, unpacked
from weft.workers import cluster_holding

if TYPE_CHECKING:
    from weft.executable.executable import Executable
    from weft.executable.items import Tiled
    from weft.executable.memory import MemoryUse
    from weft.executable.process import Process
    from weft.executable.signature import Signature
    from weft.mesh import Mesh
    from weft.target import Runtime, Target


class Loaded:
    """A loaded program, called like the function that it was compiled from."""

    def __init__(self, container: Container, program: LocalProgram) -> None:
        self.container, self.program = container, program
        self.signature: Signature = container.signature()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on arrays, scalars and nested dicts, lists and tuples of them."""
        arrays = call.arguments(self.signature, args, kwargs)
        return call.results(self.signature, run(self.program, *arrays))

    @property
    def mesh(self) -> Mesh:
        """The mesh of its devices."""
        return self.signature.mesh

    def memory(self) -> MemoryUse:
        """The peak memory of one device."""
        return self.program.memory_of_one()

    @cached_property
    def executable(self) -> Executable:
        """The executable with its kernels."""
        return _verified(self.container)

    def text(self, *, locations: bool = False) -> str:
        """The tiled program."""
        return self.executable.text(locations=locations).text

    def __repr__(self) -> str:
        return f"<weft.load: {self.signature.name} on {self.mesh.size} devices>"


def load(
    path: str | os.PathLike[str] | bytes, *, process: Process | None = None, trust: bool = False
) -> Loaded:
    """The executable of a file that `Compiled.save` wrote, or of its bytes.

    No code of the file is run: its kernels are verified, and this installation emits them, or takes
    them from the user's cache if it has done so before. With `trust`, only for files from a trusted
    source, the machine code or the emitted text in the file is used, if it is for this processor.
    For a program on devices of several processes, `process` has this one's index and the transport.
    """
    with without_gc():  # all that is read stays
        return _loaded(open_container(path, trust=trust), process)


def _loaded(container: Container, process: Process | None) -> Loaded:
    key = _key(container)
    runtime = None
    if recorder() is None:  # a profile needs the kernels' contents, to predict their seconds
        runtime = _remembered(container, key) or (_trusted(container) if container.trusts else None)
    if runtime is None:
        return Loaded(container, _emitted(container, key, process))
    tiled, plan = read_tiled(container.text("tiled"), container.constants, opaque=True)
    process = process or _worker(tiled)
    return Loaded(container, LocalProgram(tiled, plan, host_of(process), runtime=runtime))


def _worker(tiled: Tiled) -> Process | None:
    """This process of a program that spans several, if it was launched as a worker."""
    mesh = tiled.world.mesh
    workers = cluster_holding(mesh) if tiled.stack_dims.absent else None
    return None if workers is None else workers.holding(mesh)[1]


def _key(container: Container) -> Key | None:
    """The cache key of a program's machine code; cached programs were verified before."""
    target = container.text("note", TARGET)
    identity = code_identity(target)
    if identity is None:
        return None
    digest = container.digest("tiled")
    return Key("program", digest[:8], (("tiled", digest), ("target", target), ("for", identity)))


def _remembered(container: Container, key: Key | None) -> Runtime | None:
    """The program from machine code in the user's cache, if it is there."""
    code = None if key is None else the_store().get(key)
    if key is None or code is None:
        return None
    try:
        return unpacked(container.text("note", TARGET), code)
    except WeftError:
        the_store().refuse(key)
        return None


def _trusted(container: Container) -> Runtime | None:
    """The program from machine code in a trusted file; None if it has none for this processor."""
    target = container.text("note", TARGET)
    if target not in container.names("code"):
        return None
    return unpacked(target, container.read("code", target))


def _verified(container: Container) -> Executable:
    from weft.executable.files import read  # verification imports the kernel language

    return read(container)


def _emitted(container: Container, key: Key | None, process: Process | None) -> LocalProgram:
    """The program from kernels that this installation emits, and caches."""
    executable = _verified(container)
    target, kernels = _target(executable), executable.kernels()
    process = process or _worker(executable.tiled)
    adopted = container.trusts and _adopted(container, executable, target)
    program = LocalProgram(executable.tiled, executable.plan, host_of(process), target)
    if program.recorded is not None:
        from weft.traced import record_prediction  # most processes are not profiled

        record_prediction(program, executable, name=container.signature().name)
    if key is not None and target.has_kernels and not adopted:
        the_store().put(key, target.packed(kernels)["code"])
    return program


def _adopted(container: Container, executable: Executable, target: Target) -> bool:
    """Whether the emitted text of a trusted file is used; a warning says if it cannot be."""
    kinds = [kind for kind in ("code", "emitted") if executable.target in container.names(kind)]
    if not kinds:
        return False
    if "emitted" in kinds and target.adopt(
        executable.kernels(), container.read("emitted", executable.target)
    ):
        return True
    warn(
        f"{container.where}: its {' and '.join(kinds)} are for another processor or another "
        "version of weft: its kernels are emitted anew"
    )
    return False


def _target(executable: Executable) -> Target:
    """The target of an executable, if it accepts its kernels."""
    target = target_named(executable.target)
    for kernel in executable.kernels():
        if (reason := target.unsupported_kernel(kernel)) is not None:
            raise WeftError(
                f"the {executable.target} target of weft {__version__} does not support the kernel "
                f"{kernel.name}: {reason}",
                help="compile the program again with this version of weft",
            )
    return target
