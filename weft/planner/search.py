"""`weft.plan`: the mesh and the shardings with the least predicted time that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from weft.capture import Captured, capture, normalize
from weft.errors import WeftError
from weft.ir.module import Module
from weft.ir.names import DONOR, SHARDING
from weft.machine import Machine
from weft.machine import machine as machine_named
from weft.mesh import Mesh, P, as_sharding
from weft.mesh.plans import ShardingPlan
from weft.optimize.inline_calls import inline_calls
from weft.partition import PolicyMemory
from weft.planner.candidate_estimates import CandidateEstimate, CandidateEstimator
from weft.planner.candidates import PlanCandidate, candidates, spec_of
from weft.planner.explained import explained, patterns
from weft.planner.facts import ProgramFacts, program_facts, state_results
from weft.planner.repeats import LayerChains, Shortened, repeated_layers, shorten
from weft.predict import Prediction, predict
from weft.records import dataclass
from weft.shard import shard

TRIES = 8  # candidates that are compiled and simulated
KEPT = 3  # plans that are returned
_SPARE = 0.92  # the share of a device's memory that a plan may use
_OF_A_KIND = 1  # candidates of one mesh and one way to shard state that are compiled

SearchProgress = Callable[[str, int, int], None]  # what is done, of how many


@runtime_checkable
class CompiledProgram(Protocol):
    """A `weft.Compiled`."""

    def captured_for(self, *args: Any, **kwargs: Any) -> Captured:
        """The program captured for arguments."""
        ...


@dataclass(frozen=True, slots=True)
class PredictedCandidate:
    """A candidate and its prediction for the whole program."""

    candidate: PlanCandidate
    screened: CandidateEstimate
    seconds: float
    memory: int
    parts: Mapping[str, float]
    sent: Mapping[str, float]  # seconds of collectives by kind and axes


@dataclass(frozen=True, slots=True)
class PlanningProblem:
    """A program to plan: its module with one and two layers, and the facts of one."""

    captured: Captured
    facts: ProgramFacts
    short: tuple[Shortened, ...]  # with one layer, with two; or the whole program alone
    state: Mapping[int, int]
    names: tuple[str, ...]


def plan(
    fn: Any,
    *args: Any,
    machine: Machine | str,
    devices: int | None = None,
    tries: int = TRIES,
    keep: int = KEPT,
    progress: SearchProgress | None = None,
    **kwargs: Any,
) -> list[ShardingPlan]:
    """Search for shardings of a program on a machine; the best plans, the fastest first.

    Meshes of data, fsdp and model axes and the dims that are split along them are compared by an
    estimate; the best are compiled and simulated, with one and with two of the program's repeated
    layers. Optimizer state counts; plans that do not fit into memory are left out. A training step
    of a PyTorch module is given as `weft.train_step(module, loss, optimizer)`.
    """
    modelled = machine_named(machine) if isinstance(machine, str) else machine
    count = devices or modelled.devices
    if count is None:
        raise WeftError(
            f"{modelled.name} has any number of devices", help='say how many: machine="8xh100"'
        )
    modelled.holding(count)
    captured = _captured(fn, args, kwargs)
    return plan_captured(captured, modelled, count, tries=tries, keep=keep, progress=progress)


def _captured(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
    """A program on no mesh; of a compiled one, such as `weft.train_step`'s, its source."""
    if isinstance(fn, CompiledProgram):
        return fn.captured_for(*args, **kwargs)
    return capture(fn, args, kwargs)


def plan_captured(
    captured: Captured,
    machine: Machine,
    devices: int,
    *,
    tries: int = TRIES,
    keep: int = KEPT,
    progress: SearchProgress | None = None,
) -> list[ShardingPlan]:
    """The best plans for a captured program."""
    report = progress or (lambda what, done, total: None)
    report("reading the program", 0, 1)
    subject = subject_of(captured)
    screen = CandidateEstimator(subject.facts, machine)
    report("estimating candidates", 0, 1)
    limit = _SPARE * machine.memory
    screened = [screen.estimate(c) for c in candidates(subject.facts, devices)]
    if not screened:
        raise WeftError(
            f"no plan for {devices} devices: neither the batch nor dims of weights divide by "
            "the sizes of any mesh",
            help="use a batch that is a multiple of the number of devices, or fewer devices",
        )
    shortlist = [*_varied(sorted(screened, key=lambda s: s.cost(limit)), tries)]
    tried = []
    for n, one in enumerate(shortlist):
        report("simulating candidates", n, len(shortlist))
        tried.append(try_candidate(subject, one, machine))
    report("simulating candidates", len(shortlist), len(shortlist))
    # By the predicted memory, not the estimate's: that one only ordered the shortlist.
    fitting = [t for t in tried if t.memory <= machine.memory]
    if not fitting:
        least = min(tried, key=lambda t: t.memory)
        raise WeftError(
            f"no plan fits: the least needs {least.memory / 2**30:.1f} GiB a device, "
            f"{machine.name} has {machine.memory / 2**30:.1f} GiB",
            help="use more devices, a smaller batch, or rematerialize layers (jax.checkpoint)",
        )
    best = sorted(fitting, key=lambda t: t.seconds)[:keep]
    texts = explained(subject.facts, best, screened=len(screened), tried=len(tried))
    return [
        _sharding_plan(subject, one, machine, about) for one, about in zip(best, texts, strict=True)
    ]


def _varied(ordered: Sequence[CandidateEstimate], count: int) -> Iterator[CandidateEstimate]:
    """The best estimates, at most one of each mesh and way to shard state.

    Those of one kind differ by less than the estimate's error, and would fill the shortlist.
    """
    counts: dict[object, int] = {}
    total = 0
    for one in ordered:
        key = (one.candidate.axes, one.candidate.shards_weights, one.candidate.leads)
        if counts.get(key, 0) < _OF_A_KIND:
            counts[key] = counts.get(key, 0) + 1
            total += 1
            yield one
        if total == count:
            return


def subject_of(captured: Captured) -> PlanningProblem:
    """The planning problem of a captured program, with one and with two of its repeated layers."""
    names = tuple([leaf.name for leaf in captured.arguments])
    module = inline_calls(normalize(captured.module, shard))
    if len(module.function("main").body.args) != len(names):
        raise WeftError(
            "the program's arguments are not those of its function",
            help="plan a function without tokens or hoisted constants",
        )
    state = state_results(captured)
    short, layers = _shortened(module, repeated_layers(module.function("main"), names))
    one = short[0]
    # The same pairs of argument and result by their places in the shortened program.
    place = {n: i for i, n in enumerate(one.results)}
    local = {
        i: place[state[n]] for i, n in enumerate(one.arguments) if n in state and state[n] in place
    }
    facts = program_facts(
        one.module, [names[n] for n in one.arguments], local, one.in_layers, layers
    )
    return PlanningProblem(captured, facts, short, state, names)


def _shortened(module: Module, chains: LayerChains | None) -> tuple[tuple[Shortened, ...], int]:
    """The program with one and with two layers, and how many it has; or as it is, and 1."""
    if chains is not None:
        shortened = [shorten(module, chains, keep) for keep in (1, 2)]
        if shortened[0] is not None and shortened[1] is not None:
            return (shortened[0], shortened[1]), chains.count
    main = module.function("main")
    count = len(main.body.args), len(main.body.results)
    whole = Shortened(module, tuple(range(count[0])), tuple(range(count[1])), frozenset())
    return (whole,), 1


def try_candidate(
    subject: PlanningProblem, screened: CandidateEstimate, machine: Machine
) -> PredictedCandidate:
    """Compile and simulate a candidate; each further layer costs what the second one adds."""
    candidate = screened.candidate
    by_name = {a.name: spec_of(a, candidate) for a in subject.facts.arguments}
    specs = patterns(by_name, subject.facts)
    return replace(
        predicted_plan(subject, Mesh(candidate.axes), specs, machine), candidate=candidate,
        screened=screened,
    )  # fmt: skip


def predicted_plan(
    subject: PlanningProblem, mesh: Mesh, specs: Mapping[str, P], machine: Machine
) -> PredictedCandidate:
    """The prediction of shardings by patterns of names, of all layers by one and two of them."""
    lookup, policy = ShardingPlan(mesh, specs), PolicyMemory()
    predictions = [
        predict(_annotated(subject, short, mesh, lookup), machine, level=2, policy=policy)
        for short in subject.short
    ]
    more = subject.facts.layers - 1
    parts = _extrapolated([p.parts for p in predictions], more)
    sent = _extrapolated([_sent(p) for p in predictions], more)
    peaks = [p.memory.peak for p in predictions]
    # Never less than with one layer, though the peak may fall where another buffer is reused.
    memory = peaks[0] + more * max(0, peaks[-1] - peaks[0])
    seconds = predictions[0].seconds + more * (predictions[-1].seconds - predictions[0].seconds)
    none = PlanCandidate(tuple(mesh.axes), (), False)
    return PredictedCandidate(none, CandidateEstimate(none, 0.0, 0.0), seconds, memory, parts, sent)


def _extrapolated(some: Sequence[Mapping[str, float]], more: int) -> dict[str, float]:
    one, two = some[0], some[-1]
    keys = dict.fromkeys([*one, *two])
    totals = {k: one.get(k, 0.0) + more * (two.get(k, 0.0) - one.get(k, 0.0)) for k in keys}
    # A part may shrink from one layer to two, as where the second hides more of a collective.
    return {k: max(0.0, v) for k, v in totals.items()}


def _sent(prediction: Prediction) -> dict[str, float]:
    sent: dict[str, float] = {}
    for event in prediction.timeline.collectives():
        key = f"{event.name} over {event.over}"
        sent[key] = sent.get(key, 0.0) + event.total
    return sent


def _annotated(
    subject: PlanningProblem, short: Shortened, mesh: Mesh, plan: ShardingPlan
) -> Module:
    """A module on a mesh, with the shardings of a plan on its arguments and on its new state."""
    module = replace(short.module, meshes={"mesh": mesh})
    main = module.function("main")
    args = [dict(attrs) for attrs in main.arg_attrs or ((),) * len(main.body.args)]
    results = [dict(attrs) for attrs in main.res_attrs or ((),) * len(main.body.results)]
    places = {n: i for i, n in enumerate(short.results)}
    for i, n in enumerate(short.arguments):
        spec = plan(subject.names[n])
        rank = len(subject.captured.arguments[n].shape)
        if spec is None:
            continue
        text = str(as_sharding(spec, rank, mesh, name="mesh"))
        args[i][SHARDING] = text
        if (result := places.get(subject.state.get(n, -1))) is not None:
            # New state has the sharding of the old one, so that the step can be repeated, in place.
            results[result][SHARDING] = text
            args[i][DONOR] = "true"
    renewed = replace(
        main,
        arg_attrs=tuple([tuple(sorted(a.items())) for a in args]),
        res_attrs=tuple([tuple(sorted(a.items())) for a in results]),
    )
    return module.with_functions({**module.functions, "main": renewed})


def _sharding_plan(
    subject: PlanningProblem, one: PredictedCandidate, machine: Machine, about: tuple[str, ...]
) -> ShardingPlan:
    by_name = {a.name: spec_of(a, one.candidate) for a in subject.facts.arguments}
    arguments = patterns(by_name, subject.facts)
    lookup = ShardingPlan(Mesh(one.candidate.axes), arguments)
    results = {
        subject.captured.results[r].name: spec
        for n, r in subject.state.items()
        if (spec := lookup(subject.names[n])) is not None
    }
    return ShardingPlan(
        Mesh(one.candidate.axes),
        arguments,
        patterns(results, None),
        subject.captured.module.name or "",
        machine.name,
        one.seconds,
        one.memory,
        machine.memory,
        one.parts,
        about,
    )
