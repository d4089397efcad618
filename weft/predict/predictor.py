"""Predictions of a program's step on machines and meshes; no kernels are emitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

from weft.capture import normalize
from weft.cost.repeated import Repeated, repeated_layer_runs
from weft.executable.executable import Executable
from weft.ir.module import Module
from weft.ir.on_mesh import with_mesh
from weft.ir.types import TensorType
from weft.machine import Machine
from weft.mesh import as_mesh
from weft.optimize import Level
from weft.partition import PolicyMemory
from weft.pipeline import Program, compile_module
from weft.predict.prediction import SHOWN, PredictedMemory, Prediction, extrapolated
from weft.records import dataclass
from weft.shard import Pads, Rules, shard
from weft.simulate import QUIET, Noise, simulate
from weft.targets import target_named
from weft.timeline import Timeline


@dataclass(frozen=True)
class Predictor:
    """A captured program and its options, predicted on any machine and mesh.

    Of a program with many equal layers one and two of them are compiled, and the others are
    extrapolated; with `whole` all are compiled. `options` are those of `program_for`.
    """

    module: Module
    name: str = ""
    noise: Noise = QUIET
    whole: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def normalized(self) -> Module:
        """The program as the pipeline reads it, on the mesh that it was captured with."""
        return normalize(self.module, shard)

    @cached_property
    def repeated(self) -> Repeated | None:
        """The program's equal layers. Their places do not depend on the sizes of the mesh."""
        return None if self.whole else repeated_layer_runs(self.normalized)

    @cached_property
    def shortened(self) -> tuple[Module, Module] | None:
        """The program with one and with two of its equal layers; None without any."""
        found = self.repeated
        return None if found is None else (found.with_layers(1), found.with_layers(2))

    def on(
        self, machine: Machine, mesh: object = None, policy: PolicyMemory | None = None
    ) -> Prediction:
        """The prediction on a machine, and on another mesh than that of the capture."""
        policy = policy or PolicyMemory()  # one search for both: layers must be partitioned alike
        main = self.normalized.function("main")
        name, tokens = self.name or self.module.name or "main", tokens_of(main.arg_types)
        if self.shortened is None:
            return replace(self._compiled(self.module, machine, mesh, policy), name=name)
        one, two = [self._compiled(m, machine, mesh, policy) for m in self.shortened]
        assert self.repeated is not None
        whole = extrapolated(one, two, self.repeated.count - 2)
        return replace(whole, name=name, tokens=tokens)

    def _compiled(
        self, module: Module, machine: Machine, mesh: object, policy: PolicyMemory
    ) -> Prediction:
        module = normalize(module if mesh is None else with_mesh(module, as_mesh(mesh)), shard)
        program = program_for(module, machine, policy=policy, **self.options)
        return predicted(program, machine, noise=self.noise)


def predict(
    module: Module,
    machine: Machine,
    mesh: object = None,
    *,
    level: Level = 2,
    noise: Noise = QUIET,
    name: str = "",
    pads: Pads = "named",
    rules: Rules | None = None,
    numbers: Mapping[str, int] = {},
    whole: bool = False,
    apart: bool = False,
    policy: PolicyMemory | None = None,
) -> Prediction:
    """Predict one step of a captured program, optimized for a machine; `Predictor` for many.

    `policy` is partition's for an equal program with other layers, or remembers this one's.
    """
    options: dict[str, Any] = {"level": level, "pads": pads, "rules": rules, "numbers": numbers}
    options["apart"] = apart
    return Predictor(module, name, noise, whole, options).on(machine, mesh, policy)


def program_for(
    module: Module,
    machine: Machine,
    *,
    level: Level = 2,
    pads: Pads = "named",
    rules: Rules | None = None,
    numbers: Mapping[str, int] = {},
    apart: bool = False,
    policy: PolicyMemory | None = None,
) -> Program:
    """A program compiled for one device each of a machine, up to its launches.

    Virtual devices of a processor share one memory and run in lockstep, unless they are `apart`.
    """
    # Not refused where it does not fit (`fits=False`): the prediction tells by how much.
    streams = dict(zip(("compute_streams", "communication_streams"), machine.streams, strict=True))
    return compile_module(
        module, level=level, machine=machine, target=target_of(machine), tune="off", pads=pads,
        rules=rules, numbers=streams | dict(numbers), policy=policy, fits=False, to="tiled",
        # () is a process for each device: no sum over devices is folded into a kernel.
        stacked=None if machine.kind == "cpu" and not apart else (),
    )  # fmt: skip


def target_of(machine: Machine) -> str:
    """The target whose limits decide a machine's launches; nothing of it has to be installed."""
    return "llvm" if machine.kind == "cpu" else "triton"


def predicted(
    program: Program, machine: Machine, *, noise: Noise = QUIET, name: str = ""
) -> Prediction:
    """The prediction of a program that is tiled."""
    executable = program.executable
    assert executable is not None, "compiled up to tile"
    units = target_named(target_of(machine), runs=False).units
    timeline = simulate(executable, machine, noise=noise, units=units)
    mesh = next((m for m in program.module.meshes.values() if m.axes), None)
    main = next(iter(program.stages.values())).function("main")
    return Prediction(
        name or program.module.name or "main",
        machine,
        mesh,
        timeline.seconds,
        _parts(timeline),
        timeline.seconds_of("collective") - timeline.exposed,
        sum(event.flops * event.times for event in timeline.events),
        sum(event.ideal * event.times for event in timeline.events),
        _memory(executable),
        tokens_of(main.arg_types),
        timeline,
        sum(event.times for event in timeline.collectives()),
    )


def tokens_of(types: Sequence[object]) -> int | None:
    """The elements of the largest integer argument with dims, as a language model's tokens."""
    sizes = [
        type.size
        for type in types
        if isinstance(type, TensorType) and type.dtype.is_integer and len(type.shape) >= 2
    ]
    return max(sizes, default=None)


def _parts(timeline: Timeline) -> dict[str, float]:
    """The seconds of the compute stream by category; they add up to the step."""
    parts = {
        "products": timeline.seconds_of("product"),
        "attention": timeline.seconds_of("attention"),
        "other kernels": timeline.seconds_of("memory"),
        "collectives exposed": timeline.exposed,
    }
    # The delay of the slowest device at the end; rounding errors of the sums are none.
    rest = timeline.seconds - sum(parts.values())
    parts["stragglers"] = rest if rest > 1e-6 * timeline.seconds else 0.0
    return parts


def _memory(executable: Executable) -> PredictedMemory:
    use = executable.memory()
    return PredictedMemory(
        use.peak, use.arguments, use.results, use.constants, use.temporaries, use.aliased,
        use.at_peak()[:SHOWN],
    )  # fmt: skip
