"""SPMD partitioning: from a sharded global program to the program of one device."""

from __future__ import annotations

from dataclasses import replace

from weft.cost.prices import BYTES, prices_of
from weft.errors import Unsupported
from weft.ir.attrs import Attrs
from weft.ir.gc_pause import building
from weft.ir.module import Module, Node, Value, walk
from weft.ir.names import PARTITIONS, REPLICAS
from weft.machine import Machine
from weft.mesh import Mesh
from weft.ops.control import Call, RunParallel
from weft.partition.localize import Localizer
from weft.partition.notes import Note
from weft.partition.piece import Piece
from weft.partition.program import ModuleState, RuleFinder, StrategyMemory
from weft.partition.single_device import as_local, is_single_device
from weft.partition.strategy.policies import Policy
from weft.partition.strategy.search import ModuleCost, PolicyMemory, Search


def partition(
    module: Module,
    rules: RuleFinder | None = None,
    notes: list[Note] | None = None,
    places: dict[Value, list[Piece]] | None = None,
    policy: PolicyMemory | None = None,
    machine: Machine | None = None,
    seconds: ModuleCost | None = None,
) -> Module:
    """The program of one device: local types, and collectives where data must move.

    The module must be sharded; the shardings of arguments and results stay as attributes. Values in
    between have their propagated sharding, that of their operands, or one by a policy for the whole
    program, whichever sends fewer bytes. `rules` are those of the propagation; `notes` collects
    gathers with their reasons; `places` collects the local piece of every global value. `policy` is
    that of an equal program with other layers, or remembers this one's.

    With a machine, reshards are also chosen by its latencies and bandwidths, and of all outcomes
    the one of the fewest `seconds` is kept.
    """
    assert (machine is None) == (seconds is None), "the seconds are those of the machine"
    name, mesh = the_mesh(module)
    if notes is None and places is None and is_single_device(module):
        return replace(as_local(module, name), attrs=with_devices(module.attrs, 1))

    memory = StrategyMemory()

    def start(policy: Policy) -> ModuleState:
        prices = prices_of(mesh, machine) if machine and policy.by_time else BYTES
        program = ModuleState(
            module, mesh, name, rules, policy=policy, prices=prices, memory=memory
        )
        program.notes = None if notes is None else []
        program.places = None if places is None else {}
        return program

    with building():
        search = Search(start, lambda program: localized(module, program), seconds)
        best = search.following(policy or PolicyMemory())
    if notes is not None:
        notes.extend(best.program.notes or ())
    if places is not None:
        places.update(best.program.places or {})
    return best.local


def localized(module: Module, program: ModuleState) -> Module:
    """The module with all functions on local types."""
    name, mesh = program.mesh_name, program.mesh
    alone, apart = ModuleState(module, Mesh(), name), parallel_programs(module)
    local = {
        n: Localizer(alone if n in apart else program, f).function()
        for n, f in module.functions.items()
        if n in apart or n in program.roots
    }
    local |= program.added
    # In module order; functions created along the way come last.
    functions = {n: local[n] for n in module.functions if n in local} | local
    attrs = with_devices(module.attrs, mesh.size)
    # Side tables are about the global values, of which none is left.
    return replace(module, functions=functions, meshes={name: mesh}, tables={}, attrs=attrs)


def parallel_programs(module: Module) -> set[str]:
    """The functions that are local programs already: those of interpreter.run_parallel."""
    names: set[str] = set()
    ahead = [name for node in module.nodes() for name in _programs(node)]
    while ahead:
        name = ahead.pop()
        if name not in names and name in module.functions:
            names.add(name)
            calls = [n.op for n in walk(module.functions[name].body) if isinstance(n.op, Call)]
            ahead.extend(op.callee for op in calls)
    return names


def _programs(node: Node) -> list[str]:
    if not isinstance(node.op, RunParallel):
        return []
    return [*[name for row in node.op.programs for name in row], *(node.op.infeed or ())]


def the_mesh(module: Module) -> tuple[str, Mesh]:
    """The mesh of the program: the only mesh with axes, or one of a single device."""
    meshes = {name: mesh for name, mesh in module.meshes.items() if mesh.axes}
    if not meshes:
        return "mesh", Mesh()
    name, mesh = next(iter(meshes.items()))
    other = next((n for n, m in meshes.items() if m != mesh), None)
    if other is not None:
        raise Unsupported(
            f"the program has two meshes, @{name} {mesh} and @{other} {meshes[other]}",
            help="write it on one mesh: split an axis into two, or give the shardings sub-axes",
        )
    return name, mesh


def with_devices(attrs: Attrs, count: int) -> Attrs:
    """The module's attributes with the number of its devices."""
    kept = [(name, text) for name, text in attrs if name not in (PARTITIONS, REPLICAS)]
    return tuple(sorted([*kept, (PARTITIONS, f"{count} : i32"), (REPLICAS, "1 : i32")]))


__all__ = ["Note", "PolicyMemory", "is_single_device", "partition"]
