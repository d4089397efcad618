"""Sharding plans: a mesh, and shardings by patterns of names; saved as JSON, exported as code."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.mesh.axes import Mesh
from weft.mesh.spelling import P
from weft.records import dataclass

VERSION = 1  # of the JSON format
EXPORTS = ("jax", "dtensor", "tp_plan")


@dataclass(frozen=True)
class ShardingPlan:
    """A mesh and the shardings of a program's arguments and results, by patterns of their names.

    `*` stands for the number of a layer. `weft.compile(plan=...)` takes the plan, or its file.
    """

    mesh: Mesh
    arguments: Mapping[str, P]
    results: Mapping[str, P] = field(default_factory=dict)
    program: str = ""
    machine: str = ""
    seconds: float = 0.0  # predicted, of a step
    memory: int = 0  # predicted, of a device
    limit: int = 0  # bytes that a device has
    parts: Mapping[str, float] = field(default_factory=dict)  # seconds by what they are spent on
    about: tuple[str, ...] = ()  # what it does, and how it compares with the others

    def __call__(self, name: str, shape: tuple[int, ...] = ()) -> P | None:
        """The sharding of an argument; None where the plan names none."""
        return _first(self._argument_patterns, name)

    def result(self, name: str) -> P | None:
        """The sharding of a result."""
        return _first(self._result_patterns, name)

    @cached_property
    def _argument_patterns(self) -> list[tuple[re.Pattern[str], P]]:
        return [(_pattern(text), spec) for text, spec in self.arguments.items()]

    @cached_property
    def _result_patterns(self) -> list[tuple[re.Pattern[str], P]]:
        return [(_pattern(text), spec) for text, spec in self.results.items()]

    @property
    def title(self) -> str:
        """The mesh in a line."""
        return " x ".join(f"{name}={size}" for name, size in self.mesh.axes) or "one device"

    def __repr__(self) -> str:
        figures = f", {self.seconds * 1e3:.3g} ms a step" if self.seconds else ""
        return f"<ShardingPlan {self.title}{figures}>"

    def __str__(self) -> str:
        """The plan in words, and the shardings that are not whole."""
        split = [(name, str(spec)) for name, spec in self.arguments.items() if spec != P()]
        width = max((len(name) for name, _ in split), default=0)
        lines = [f"  {name:{width}}  {spec}" for name, spec in split]
        return "\n".join([repr(self)[1:-1], *[f"  {line}" for line in self.about], *lines])

    def as_json(self) -> dict[str, Any]:
        """The plan as data."""
        return {
            "weft plan": VERSION,
            "program": self.program,
            "machine": self.machine,
            "mesh": dict(self.mesh.axes),
            "arguments": {name: _spec_json(spec) for name, spec in self.arguments.items()},
            "results": {name: _spec_json(spec) for name, spec in self.results.items()},
            "predicted": {
                "seconds": self.seconds,
                "memory": self.memory,
                "limit": self.limit,
                "parts": dict(self.parts),
            },
            "about": list(self.about),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as a JSON file."""
        try:
            Path(path).write_text(_lined(self.as_json()), encoding="utf-8")
        except OSError as error:
            raise WeftError(
                f"cannot write {os.fspath(path)}: {error.strerror or error}",
                help="name a file in a folder that exists",
            ) from None

    def export(self, kind: str) -> str:
        """The plan as Python code for other systems: "jax", "dtensor" or "tp_plan"."""
        if kind not in EXPORTS:
            raise WeftError(
                f"unknown export {kind!r}; expected {', '.join(EXPORTS[:-1])} or {EXPORTS[-1]}",
                help='write plan.export("jax")',
            )
        return EXPORTERS[kind](self)


def read_plan(path: str | os.PathLike[str]) -> ShardingPlan:
    """The plan of a file."""
    shown = os.fspath(path)
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise WeftError(
            f"cannot read {shown}: {error.strerror or error}", help="name a plan's JSON file"
        ) from None
    except ValueError as error:
        raise WeftError(f"{shown} is not JSON: {error}", help="save plans with plan.save") from None
    if not isinstance(data, dict) or data.get("weft plan") != VERSION:
        raise WeftError(
            f"{shown} is not a sharding plan of version {VERSION}",
            help="save plans with plan.save, or `weft plan -o FILE`",
        )
    try:
        figures = data.get("predicted", {})
        return ShardingPlan(
            Mesh(data["mesh"].items()),
            {name: _spec(given) for name, given in data["arguments"].items()},
            {name: _spec(given) for name, given in data.get("results", {}).items()},
            str(data.get("program", "")),
            str(data.get("machine", "")),
            float(figures.get("seconds", 0.0)),
            int(figures.get("memory", 0)),
            int(figures.get("limit", 0)),
            {str(k): float(v) for k, v in figures.get("parts", {}).items()},
            tuple(map(str, data.get("about", ()))),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise WeftError(
            f"{shown}: the plan is malformed: {error!r}",
            help='it has a mesh, {"data": 8}, and arguments, {"w": [["data"], []]}',
        ) from None


def _lined(data: Mapping[str, Any]) -> str:
    """JSON with a line for each sharding, figure and sentence."""
    parts = []
    for key, value in data.items():
        if isinstance(value, dict | list) and value and key != "mesh":
            pairs = value.items() if isinstance(value, dict) else [(None, v) for v in value]
            rows = [
                (f"{json.dumps(k)}: " if k is not None else "") + json.dumps(v) for k, v in pairs
            ]
            opened, closed = "{}" if isinstance(value, dict) else "[]"
            text = f"{opened}\n    " + ",\n    ".join(rows) + f"\n  {closed}"
        else:
            text = json.dumps(value)
        parts.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def as_plan(given: object) -> object:
    """A plan of ours from its file; anything else as it is."""
    is_file = isinstance(given, os.PathLike) or (isinstance(given, str) and given.endswith(".json"))
    return read_plan(given) if is_file else given  # type: ignore[arg-type]


def _spec_json(spec: P) -> list[Any]:
    """Axes dim by dim; a dim of lower priority has it as a number behind its axes."""
    return [
        [str(axis).strip('"') for axis in dim.axes] + ([dim.priority] if dim.priority else [])
        for dim in spec.dims
    ]


def _spec(given: list[list[Any]]) -> P:
    dims = [[axis for axis in dim if isinstance(axis, str)] for dim in given]
    ranks = [next((n for n in dim if isinstance(n, int)), 0) for dim in given]
    if any(ranks):
        return P(*[dim or None for dim in dims], priorities=ranks)
    return P(*[dim or None for dim in dims])


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(r"\d+".join(map(re.escape, text.split("*"))))


def _first(patterns: list[tuple[re.Pattern[str], P]], name: str) -> P | None:
    return next((spec for pattern, spec in patterns if pattern.fullmatch(name)), None)


# Code for other systems


def _jax_text(plan: ShardingPlan) -> str:
    """PartitionSpecs by name, for jax.jit's in_shardings and out_shardings."""
    names, sizes = (tuple(part) for part in zip(*plan.mesh.axes, strict=True))
    lines = [
        "import jax",
        "from jax.sharding import PartitionSpec",
        "",
        f"mesh = jax.make_mesh({sizes!r}, {names!r})",
    ]
    for word, specs in (("arguments", plan.arguments), ("results", plan.results)):
        lines.append(f"{word} = {{  # * stands for the number of a layer")
        lines += [
            f"    {name!r}: PartitionSpec({_dims_text(spec)})," for name, spec in specs.items()
        ]
        lines.append("}")
    return "\n".join(lines) + "\n"


def _dims_text(spec: P) -> str:
    texts = []
    for dim in spec.dims:
        axes = [str(axis).strip('"') for axis in dim.axes]
        texts.append("None" if not axes else repr(axes[0]) if len(axes) == 1 else repr(tuple(axes)))
    return ", ".join(texts)


def _styles(plan: ShardingPlan) -> dict[str, str]:
    """colwise and rowwise by module, for weights (out, in) along the tensor axis."""
    styles = {}
    for name, spec in plan.arguments.items():
        module, _, kind = name.rpartition(".")
        if kind != "weight" or len(spec.dims) > 2:
            continue
        for dim, style in enumerate(("colwise", "rowwise")):
            if dim < len(spec.dims) and any(a.name == "model" for a in spec.dims[dim].axes):
                # A table is (vocabulary, width): PyTorch calls it rowwise if its rows are split.
                turned = ("rowwise", "colwise")[dim]
                styles[module] = turned if _is_table(module) else style
    if not plan.arguments or any("[" in name for name in plan.arguments if "." not in name):
        weights = [name for name in plan.arguments if name.endswith(".weight")]
        if not weights:
            raise WeftError(
                "the plan is not of a PyTorch module: no argument is named like layer.weight",
                help='plan.export("jax") gives PartitionSpecs',
            )
    return styles


def _alone(styles: Mapping[str, str]) -> set[str]:
    """Modules that are in no pair: their whole input is cut, or their output is gathered.

    A pair is the columns of one layer and then the rows of a later one in the same module, which
    pass pieces on, as in an MLP or attention; an embedding's rows take whole indices.
    """
    alone = set()
    for module, style in styles.items():
        parent = module.rpartition(".")[0]
        beside = [name for name in styles if name.rpartition(".")[0] == parent]
        at = beside.index(module)
        partners = beside[:at] if style == "rowwise" else beside[at + 1 :]
        if _is_table(module) or all(styles[name] == style for name in partners):
            alone.add(module)
    return alone


def _is_table(module: str) -> bool:
    return "embed" in module or module.endswith("wte")


def _tp_text(plan: ShardingPlan) -> str:
    styles = _styles(plan)
    alone, found = _alone(styles), dict[str, str]()
    for module, style in styles.items():
        if _is_table(module):  # whole indices, and a whole result
            found[module] = f"embedding_{style}"
        else:
            found[module] = f"{style}_rep" if module in alone else style
    lines = [f"    {name!r}: {style!r}," for name, style in found.items()]
    return "\n".join(["tp_plan = {", *lines, "}"]) + "\n"


def _dtensor_text(plan: ShardingPlan) -> str:
    """parallelize_module's styles for the tensor axis, fully_shard for the others."""
    classes = {"colwise": "ColwiseParallel", "rowwise": "RowwiseParallel"}
    whole = {"colwise": "output_layouts=Replicate()", "rowwise": "input_layouts=Replicate()"}
    names, sizes = (tuple(part) for part in zip(*plan.mesh.axes, strict=True))
    found, code = _styles(plan), list[str]()
    alone = _alone(found)
    imports = {"init_device_mesh": "torch.distributed.device_mesh"}
    parallel = "torch.distributed.tensor.parallel"
    if found:
        made = [
            f"    {m!r}: {classes[s]}({whole[s] if m in alone else ''})," for m, s in found.items()
        ]
        code += ["styles = {", *made, "}", 'parallelize_module(model, mesh["model"], styles)']
        if alone:
            imports["Replicate"] = "torch.distributed.tensor"
        imports |= dict.fromkeys([classes[s] for s in sorted({*found.values()})], parallel)
        imports["parallelize_module"] = parallel
    rows = tuple([name for name in names if name != "model"])
    if "fsdp" in rows:
        which = repr(rows[0]) if len(rows) == 1 else repr(rows)
        imports["fully_shard"] = "torch.distributed.fsdp"
        code.append(f"fully_shard(model, mesh=mesh[{which}])")
    elif rows:
        over = " and ".join(f'mesh["{name}"]' for name in rows)
        code.append(f"# each group of {over} gets its part of the batch: DistributedDataParallel")
    modules = {m: ", ".join(n for n in imports if imports[n] == m) for m in imports.values()}
    lines = [f"from {module} import {listed}" for module, listed in sorted(modules.items())]
    lines += ["", f'mesh = init_device_mesh("cuda", {sizes!r}, mesh_dim_names={names!r})', *code]
    return "\n".join(lines) + "\n"


EXPORTERS = {"jax": _jax_text, "dtensor": _dtensor_text, "tp_plan": _tp_text}
