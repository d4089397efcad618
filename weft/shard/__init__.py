"""Sharding propagation: from the annotated values to every value, with Shardy's semantics."""

from __future__ import annotations

from weft.ir.gc_pause import building
from weft.ir.module import Module
from weft.ir.on_mesh import with_mesh
from weft.mesh import Sharding, as_mesh
from weft.records import dataclass
from weft.shard.drop_shardings import drop_shardings
from weft.shard.exporting.export import export
from weft.shard.exporting.signature import IndivisibleDim, Pads
from weft.shard.preparation.from_table import annotate_from_table
from weft.shard.preparation.prepare import prepare
from weft.shard.propagation.build import build
from weft.shard.propagation.graph import Graph, remove_dead_nodes
from weft.shard.propagation.propagate import Propagation, PropagationLevel
from weft.shard.rules import Rules


@dataclass(frozen=True, slots=True)
class Propagated:
    """A module after propagation: the graph, and the sharding of each of its cells."""

    module: Module  # prepared: constants split, constraints applied
    graph: Graph
    shardings: list[Sharding | None]
    level: PropagationLevel = "user"
    given: Module | None = None  # the user's module, before preparation
    pads: Pads = "none"


def propagate(
    module: Module,
    level: PropagationLevel = "user",
    rules: Rules | None = None,
    *,
    pads: Pads = "none",
) -> Propagated:
    """Propagate the sharding annotations of a module; `rules` are the user's."""
    prepared = prepare(annotate_from_table(module))
    graph = build(prepared, rules)
    shardings = Propagation(graph, level).run()
    remove_dead_nodes(graph)
    return Propagated(graph.module, graph, shardings, level, module, pads)


def shard(
    module: Module,
    mesh: object = None,
    *,
    level: PropagationLevel = "user",
    rules: Rules | None = None,
    pads: Pads = "none",
    notes: list[IndivisibleDim] | None = None,
) -> Module:
    """The module with a sharding for every value, in its side table `sharding`.

    A mesh (`weft.Mesh(data=2, model=4)`, or one of JAX's) sets the sizes of the module's axes.
    Arguments and results get only axes that divide their dims, as in Shardy; with `pads="named"`
    those with a sharding in the program keep it, padded, and with "inferred" all keep their
    propagated sharding. Dropped axes are appended to `notes`.
    """
    if mesh is not None:
        module = with_mesh(module, as_mesh(mesh))
    with building():
        done = propagate(module, level, rules)
        return export(done.module, done.graph, done.shardings, pads=pads, notes=notes)


__all__ = [
    "IndivisibleDim",
    "Pads",
    "Propagated",
    "PropagationLevel",
    "Rules",
    "drop_shardings",
    "propagate",
    "shard",
]
