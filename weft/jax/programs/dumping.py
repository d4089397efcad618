"""`xla_dump_to`: files of the program before and after optimization, and its kernels.

File names follow XLA, so that tools for its dumps find them: HLO where the program has that form,
else StableHLO. `xla_dump_hlo_pass_re` matches names of stages.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.ir.module import Module
from weft.jax.programs.notices import notify
from weft.jax.programs.xla_options import OptionValue
from weft.jax.questions.device_program import DescribedProgram, device_program
from weft.records import dataclass
from weft.traced import kernel_texts

_TO, _MODULES, _STAGES = "xla_dump_to", "xla_dump_hlo_module_re", "xla_dump_hlo_pass_re"
_FORMATS = {f"xla_dump_hlo_as_{format}": format for format in ("text", "proto", "dot")}
HONOURED = (_TO, _MODULES, _STAGES, *_FORMATS)
_COUNT = itertools.count()
_STDOUT = "-"


@dataclass(frozen=True, slots=True)
class Dump:
    """Dump options: folder, programs, formats and stages."""

    folder: str
    modules: str
    stages: str
    formats: tuple[str, ...]

    def wants(self, name: str) -> bool:
        """Whether a program is dumped."""
        return _matches(_MODULES, self.modules, name)

    def wants_stage(self, name: str) -> bool:
        """Whether a stage is dumped."""
        return bool(self.stages) and _matches(_STAGES, self.stages, name)


def _matches(option: str, pattern: str, name: str) -> bool:
    """Whether a name matches an option's pattern; as in XLA, an invalid pattern matches nothing."""
    try:
        return bool(re.search(pattern, name))
    except re.error as error:
        notify(f"{option}={pattern} is not a regular expression: {error}")
        return False


def dump_in(options: Mapping[str, OptionValue]) -> Dump | None:
    """The dump options among XLA's; None if dumping is off."""
    folder = str(options.get(_TO, ""))
    if not folder:
        return None
    requested = [name for name in _FORMATS if str(options.get(name)).lower() in ("true", "1")]
    formats = tuple([_FORMATS[name] for name in requested])
    modules, stages = (str(options.get(name, "")) for name in (_MODULES, _STAGES))
    return Dump(folder, modules, stages, formats or ("text",))


def dump(
    wanted: Dump, executable: DescribedProgram, before: Module | None, stages: Mapping[str, Module]
) -> None:
    """Dump a compiled program; a deserialized one has no `before`."""
    if not wanted.wants(executable.name):
        return
    prefix = f"module_{next(_COUNT):04}.{re.sub(r'[^A-Za-z0-9_.-]+', '_', executable.name)}"
    files: dict[str, bytes] = {}
    if before is not None:
        files |= dict(_forms("before_optimizations", before.text(), wanted.formats))
    for name, module in stages.items():
        if wanted.wants_stage(name):
            files[f"{name}.mlir"] = module.text(locations=True).encode()
    files |= dict(_forms("weft_after_optimizations", device_program(executable), wanted.formats))
    for name, text in kernel_texts(executable.local).items():
        files[f"{name}.ir-no-opt.ll"] = text.encode()
    _write(wanted.folder, {f"{prefix}.{name}": content for name, content in files.items()})


def _forms(stage: str, text: str, formats: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """A module in the requested formats."""
    from jaxlib import _jax

    try:
        computation: Any = _jax.mlir.mlir_module_to_xla_computation(text)
    except (_jax.JaxRuntimeError, ValueError, RuntimeError):  # no HLO form
        yield f"{stage}.mlir", text.encode()
        return
    if "text" in formats:
        yield f"{stage}.txt", computation.as_hlo_text().encode()
    if "proto" in formats:
        yield f"{stage}.hlo.pb", _as_message(computation.as_serialized_hlo_module_proto())
    if "dot" in formats:
        yield f"{stage}.dot", computation.as_hlo_dot_graph().encode()


def _as_message(content: bytes) -> bytes:
    """An HloProto, whose first field is the module."""
    size, count = [], len(content)
    while count > 0x7F:
        size.append(count & 0x7F | 0x80)
        count >>= 7
    return bytes([0x0A, *size, count]) + content


def _write(folder: str, files: Mapping[str, bytes]) -> None:
    if folder == _STDOUT:
        for name, content in files.items():
            if name.endswith((".txt", ".mlir")):
                print(f"*** Begin {name} ***\n{content.decode()}\n*** End {name} ***", flush=True)
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
    except OSError as error:
        notify(f"xla_dump_to={folder} cannot be written to: {error.strerror or error}")
