"""The kernels of a compiled program and its summary, in the folder of its trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from weft.cost.kernels import kernel_seconds
from weft.cost.sent import total_sent
from weft.cost.sent_table import sent_by_line, sent_text
from weft.executable.executable import Executable
from weft.ir.location import Location
from weft.ir.module import Module, Node
from weft.kernels.group import AnyKernel
from weft.kernels.text import kernel_text
from weft.kernels.work import work_of
from weft.machine import HOST, Machine, bytes_text
from weft.ops.shape import Constant
from weft.records import dataclass
from weft.run import LocalProgram
from weft.run.bind import loaded_kernels
from weft.run.parts import hosts_of
from weft.target import Target
from weft.trace import Trace


@dataclass(slots=True)
class _Row:
    """A kernel, the nodes that it computes if they are known, and its launches in a run."""

    kernel: AnyKernel
    nodes: tuple[Node, ...]
    loc: Location
    launches: int = 0


def trace_program(trace: Trace, module: Module, program: LocalProgram) -> None:
    """Write the text of each kernel, and what was compiled into what, in how much time."""
    if not trace.is_on:
        return
    rows, others = _rows(program), [host.node for host in hosts_of(program)]
    suffix = next(iter(program.target.forms.values())) if program.target is not None else ""
    for name, text in kernel_texts(program).items():
        trace.write_text(f"kernels/{name}.{suffix}", text)
    lines = [
        f"{module.name or 'main'} on {program.mesh.size} devices",
        *_times(trace),
        *_kernels(rows),
        *_others(others),
        *_memory(program),
        *_sent(module),
    ]
    trace.write_text("summary.txt", "\n".join(lines) + "\n")


def record_prediction(
    program: LocalProgram, executable: Executable, machine: Machine | None = None, name: str = ""
) -> None:
    """Note the predicted timeline of a program that is profiled, for comparison."""
    if program.recorded is not None:
        from weft.machine.here import machine_here  # it asks the drivers of GPUs
        from weft.simulate import simulate

        where = machine or (HOST if program.is_on_host else machine_here().machine)
        units = None if program.target is None else program.target.units
        timeline = simulate(executable, where, units=units)
        program.recorded.predict(timeline, where.name, name)


def kernel_texts(program: LocalProgram) -> dict[str, str]:
    """The text of each kernel of a program, below its contract, by a name with a number."""
    return {} if program.target is None else _texts(_rows(program), program.target)


def _rows(program: LocalProgram) -> dict[str, _Row]:
    """The kernels of a program by name, equal ones once; one that was stored has no nodes."""
    rows: dict[AnyKernel, _Row] = {}
    for launch, _ in loaded_kernels(program.calls) if program.calls else ():
        nodes = launch.group.nodes if launch.group is not None else ()
        row = rows.setdefault(launch.kernel, _Row(launch.kernel, nodes, launch.loc))
        row.launches += 1
    return {f"{n:02}-{row.kernel.name[:60]}": row for n, row in enumerate(rows.values())}


def _texts(rows: Mapping[str, _Row], target: Target) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, row in rows.items():
        contract = "".join([f"; {line}\n" for line in kernel_text(row.kernel).splitlines()])
        texts[name] = f"{contract}\n{target.text(row.kernel)}"
    return texts


def _times(trace: Trace) -> Iterator[str]:
    """The seconds of every stage, and of the passes that the optimizer has run."""
    stages = {name: took for name, took in trace.seconds.items() if "/" not in name}
    yield f"\ntime to compile: {_milliseconds(sum(stages.values()))}"
    for name, took in trace.seconds.items():
        stage, _, inner = name.rpartition("/")
        yield f"  {'  ' if stage else ''}{inner:<32}{_milliseconds(took):>12}"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f} ms"


def _kernels(rows: Mapping[str, _Row]) -> Iterator[str]:
    """A line for each kernel, with its work, its predicted cost, and the user's line."""
    count = sum(row.launches for row in rows.values())
    yield f"\nkernels: {count} launches of {len(rows)} distinct kernels"
    for name, row in rows.items():
        work = work_of(row.kernel)
        flops = work.flops + work.transcendentals
        cost = f"{1e6 * kernel_seconds(row.kernel, HOST):,.1f} us"
        ops = Counter([_short(node) for node in row.nodes if not isinstance(node.op, Constant)])
        fused = ", ".join([f"{op} x{n}" if n > 1 else op for op, n in ops.items()])
        yield f"  {name}  x{row.launches}  {bytes_text(work.bytes)}, {flops:,} flops, cost {cost}"
        if row.nodes:
            yield f"    {fused or 'copy'}"
        yield f"    {row.loc.describe()}"


def _others(others: Sequence[Node]) -> Iterator[str]:
    """The nodes that no kernel computes."""
    if others:
        yield "\nin no kernel, run by numpy:"
    for node in others:
        yield f"  {_short(node)}  {node.loc.describe()}"


def _short(node: Node) -> str:
    return node.op.name.rpartition(".")[2]


def _memory(program: LocalProgram) -> Iterator[str]:
    memory = program.memory_of_one()
    yield "\nmemory of one device:"
    sizes = {
        "arguments": memory.arguments,
        "results": memory.results,
        "temporaries": memory.temporaries,
        "results in donated arguments": memory.aliased,
        "peak": memory.peak,
    }
    yield from [f"  {name:<32}{bytes_text(size):>12}" for name, size in sizes.items()]


def _sent(module: Module) -> Iterator[str]:
    rows = sent_by_line(module)
    if rows:
        yield f"\neach device sends {bytes_text(round(total_sent(rows)))}:\n{sent_text(rows)}"
