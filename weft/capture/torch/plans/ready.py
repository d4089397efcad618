"""Ready-made plans: shardings of a module's parameters and batch by name, shape and mesh axis.

`tp` follows a Hugging Face model's own `tp_plan`, or the names and shapes of its layers: Megatron's
columns, then rows. `fsdp` shards every parameter along one dim, and gathers it where it is used.
`sp` splits the activations between the blocks of `tp` along the sequence. `cp` splits the inputs
along the sequence, so that attention passes keys and values along a ring. `ep` splits the stacked
parameters of experts. Axes are found by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from weft.capture.captured import Leaf
from weft.capture.shardings import Spelled
from weft.capture.torch.plans.by_name import PlannedShardings
from weft.errors import WeftError
from weft.mesh import Mesh, P
from weft.records import dataclass

DATA = ("data", "dp", "fsdp")
TENSOR = ("tp", "model")
EXPERT = ("ep", "expert")
CONTEXT = ("cp", "context")
AxesByDim: TypeAlias = dict[int, tuple[str, ...]]
PLANS = (
    *("auto", "tp", "tp+sp", "ep", "fsdp", "fsdp+tp", "fsdp+tp+sp", "fsdp+ep"),
    *("cp", "tp+cp", "fsdp+cp", "fsdp+tp+cp"),
)

# Styles of a tp_plan by the dim of a Linear's weight (out, in) that they split.
_COLUMNS = {"colwise", "colwise_rep", "colwise_gather_output", "packed_colwise"}
_ROWS = {"rowwise", "rowwise_rep", "rowwise_split_input", "packed_rowwise"}
_VOCABULARY = {"embedding_rowwise": 0, "embedding_colwise": 1}

# The stacked parameters of experts, weights and biases.
_EXPERTS = re.compile(r"(^|\.)experts\.[a-z_]\w*$")

# Names of layers that open and close a block, where their shapes do not tell.
_OPENS = re.compile(
    r"(^|[._])(q|k|v|qkv|query|key|value|in_proj|c_attn|c_fc|gate|up|fc1|w1|w3|wi)($|[._])"
)
_SHARED = re.compile(r"(^|[._])(k|v|key|value)(_proj)?$")  # layers of keys and values
_CLOSES = re.compile(r"(^|[._])(o|out|out_proj|c_proj|proj|dense|down|fc2|w2|wo)($|[._])")


@dataclass(frozen=True, slots=True)
class MeshRoles:
    """The mesh axes of each role, with their sizes."""

    data: tuple[str, ...]
    tensor: tuple[str, ...]
    expert: tuple[str, ...]
    context: tuple[str, ...]
    sizes: Mapping[str, int]

    def divide(self, size: int, axes: Sequence[str]) -> bool:
        """Whether a size can be split evenly along axes."""
        count = math.prod([self.size(axis) for axis in axes])
        return count > 1 and size % count == 0

    def size(self, axis: str) -> int:
        """The size of an axis, or of a part of one, `tp:(1)2`."""
        return self.sizes[axis] if axis in self.sizes else int(axis.rpartition(")")[2])


def ready_plan(
    name: str, module: Any, state: Sequence[Leaf], inputs: Sequence[Leaf], mesh: Mesh | None
) -> PlannedShardings:
    """The shardings of a module's state and inputs by the name of a plan."""
    if name not in PLANS:
        raise WeftError(
            f"plan={name!r} is not a plan",
            help=f"ready-made plans are {', '.join(PLANS)}; or give a dict of name patterns",
        )
    if mesh is None:
        raise WeftError(f"plan={name!r} needs a mesh", help="give mesh=weft.Mesh(data=2, tp=4)")
    axes = mesh_roles(mesh)
    parts = plan_parts(name, axes)
    trained = None if module is None else {n for n, _ in module.named_parameters()}
    styles = styles_of(module)
    shardings: list[Spelled] = []
    gathered: dict[int, Spelled] = {}
    for n, leaf in enumerate(state):
        if trained is not None and leaf.name not in trained:
            shardings.append(None)
            continue
        split = tensor_split(leaf, parts, axes, styles, module)
        along = _fsdp_split(leaf, split, axes) if "fsdp" in parts else {}
        shardings.append(spelled(leaf, {**split, **along}, priority=along))
        if along:
            gathered[n] = spelled(leaf, split)
    placed = [input_sharding(leaf, axes, "cp" in parts) for leaf in inputs]
    return PlannedShardings([*shardings, *placed], gathered)


def mesh_roles(mesh: Mesh) -> MeshRoles:
    """The axes of a mesh by the roles that their names have."""
    sizes = dict(mesh.axes)
    data, tensor, expert, context = (
        tuple([axis for axis in sizes if axis in role]) for role in (DATA, TENSOR, EXPERT, CONTEXT)
    )
    return MeshRoles(data, tensor, expert, context, sizes)


def plan_parts(name: str, axes: MeshRoles) -> set[str]:
    """The kinds of sharding that a plan combines; `auto` takes them from the axes' names."""
    if name == "auto":
        roles = {
            "tp": axes.tensor,
            "ep": axes.expert,
            "fsdp": "fsdp" in axes.data,
            "cp": axes.context,
        }
        return {part for part, is_there in roles.items() if is_there}
    parts = set(name.split("+"))
    wanted = (
        ("tp", axes.tensor, TENSOR),
        ("ep", axes.expert, EXPERT),
        ("fsdp", axes.data, DATA),
        ("cp", axes.context, CONTEXT),
    )
    for part, found, names in wanted:
        if part in parts and not found:
            has = ", ".join(axes.sizes) or "no axis"
            raise WeftError(
                f"plan={name!r} finds no axis for {part} in the mesh, which has {has}",
                help=f"name one of its axes {' or '.join(names)}",
            )
    return parts


def tensor_split(
    leaf: Leaf, parts: set[str], axes: MeshRoles, styles: Mapping[re.Pattern[str], str], module: Any
) -> AxesByDim:
    """The dims of a parameter that expert or tensor parallelism splits."""
    dims: list[tuple[int, tuple[str, ...]]] = []
    if "ep" in parts and _EXPERTS.search(leaf.name):
        dims = [(0, axes.expert)]
    elif "tp" in parts:
        dims = _tensor_dims(leaf, styles, axes, module)
    return {dim: along for dim, along in dims if axes.divide(leaf.shape[dim], along)}


def _fsdp_split(leaf: Leaf, split: AxesByDim, axes: MeshRoles) -> AxesByDim:
    """The dim that FSDP splits: the first one if it can, as its pieces lie in one stretch."""
    along = axes.data if "fsdp" not in axes.data or len(axes.data) == 1 else ("fsdp",)
    free = [d for d in range(len(leaf.shape))
            if d not in split and axes.divide(leaf.shape[d], along)]  # fmt: skip
    return {free[0]: along} if free else {}


def spelled(leaf: Leaf, split: AxesByDim, priority: Collection[int] = ()) -> Spelled:
    """A parameter's sharding; dims of `priority` come after all others."""
    # The batch spreads over the activations first: then weights are gathered where they are used.
    dims = range(len(leaf.shape))
    return P(*[split.get(dim) for dim in dims], priorities=[int(dim in priority) for dim in dims])


def _tensor_dims(
    leaf: Leaf, styles: Mapping[re.Pattern[str], str], axes: MeshRoles, module: Any
) -> list[tuple[int, tuple[str, ...]]]:
    """Where tensor parallelism splits a parameter."""
    path, _, kind = leaf.name.rpartition(".")
    style = next(
        (s for p, s in styles.items() if p.fullmatch(leaf.name) or p.fullmatch(path)), None
    )
    rank = len(leaf.shape)
    dim: int | None
    if styles:
        dim = _dim_of_style(style, rank)
    else:
        # A bias belongs to the columns of its layer's weight.
        weight = _weight_of(module, path) if kind == "bias" else None
        shape = leaf.shape if weight is None else tuple(weight.shape)
        # A layer that keeps its weight as (in, out) is judged by its shape the other way around.
        turned = shape[::-1] if is_transposed(module, path) else shape
        dim = _dim_by_shape(turned, path, kind, _is_embedding(module, path))
        if weight is not None and dim != 0:
            return []
    if dim is not None and is_transposed(module, path):
        dim = 1 - dim if rank == 2 else (None if dim == 1 else dim)
    along = _head_axes(module, path, axes)
    return [(dim, along)] if along and dim is not None else []


def _head_axes(module: Any, path: str, axes: MeshRoles) -> tuple[str, ...]:
    """The axes that split a layer; of keys and values only so far as there are heads.

    The other devices have copies: parts of a head would have to be exchanged.
    """
    count = _shared_heads(module, path) if _SHARED.search(path) else None
    if count is None or len(axes.tensor) != 1:
        return axes.tensor
    (axis,) = axes.tensor
    whole = axes.sizes[axis]
    devices = math.gcd(whole, count)
    return axes.tensor if devices == whole else () if devices == 1 else (f"{axis}:(1){devices}",)


def _shared_heads(module: Any, path: str) -> int | None:
    """The heads of keys and values by the configuration of the nearest module around a layer."""
    while module is not None and path:
        path = path.rpartition(".")[0]
        try:
            config = getattr(module.get_submodule(path), "config", None)
        except AttributeError:
            return None
        if isinstance(count := getattr(config, "num_key_value_heads", None), int):
            return count
    return None


def _dim_of_style(style: str | None, rank: int) -> int | None:
    """The dim that a style of a tp_plan splits; experts have theirs in front."""
    if style in _COLUMNS:
        return rank - 2 if rank > 1 else 0
    if style in _ROWS:
        return rank - 1 if rank > 1 else None
    return _VOCABULARY.get(style or "") if rank == 2 else None


def _dim_by_shape(shape: tuple[int, ...], path: str, kind: str, is_embedding: bool) -> int | None:
    """Columns of layers that widen or open a block, rows of those that narrow or close one."""
    if is_embedding or "embed" in path or "lm_head" in path:
        return 0 if len(shape) == 2 and shape[0] > shape[1] else None
    last = path.rpartition(".")[2]
    if len(shape) == 2:
        out, into = shape
        # Keys that several queries share are narrower than what they are computed of.
        if out > into or _SHARED.search(last):
            return 0
        if out < into:
            return 1
        return 0 if _OPENS.search(last) else 1 if _CLOSES.search(last) else None
    if len(shape) == 1 and kind == "bias" and _OPENS.search(last):
        return 0
    return None


def _weight_of(module: Any, path: str) -> Any:
    """The weight of the layer that a bias belongs to, if that is a matrix."""
    try:
        weight = None if module is None else getattr(module.get_submodule(path), "weight", None)
    except AttributeError:
        return None
    return weight if getattr(weight, "ndim", 0) == 2 else None


def is_transposed(module: Any, path: str) -> bool:
    """Whether a layer keeps its weight as (in, out), as GPT-2's do."""
    return any(cls.__name__ == "Conv1D" for cls in _classes(module, path))


def _is_embedding(module: Any, path: str) -> bool:
    """Whether a layer is a table, of words or of positions."""
    return any(cls.__name__ == "Embedding" for cls in _classes(module, path))


def _classes(module: Any, path: str) -> Sequence[type]:
    """The classes of a layer."""
    try:
        return () if module is None else type(module.get_submodule(path)).__mro__
    except AttributeError:
        return ()


def styles_of(module: Any) -> dict[re.Pattern[str], str]:
    """A model's tp_plan and ep_plan by patterns of names; `*` stands for a layer's number."""
    styles: dict[re.Pattern[str], str] = {}
    for word in ("ep_plan", "tp_plan"):
        held = getattr(module, word, None) or getattr(module, f"_{word}", None)
        for pattern, style in held.items() if isinstance(held, Mapping) else ():
            words = [re.escape(each) for each in str(pattern).split("*")]
            styles.setdefault(re.compile(r"\d+".join(words)), str(style))
    return styles


def input_sharding(leaf: Leaf, axes: MeshRoles, splits_context: bool = False) -> Spelled:
    """The batch is split along the data axes, and the sequence (dim 1) along those of context."""
    batch = batch_axes(leaf, axes)
    is_sequence = splits_context and len(leaf.shape) in (2, 3)
    if is_sequence and axes.divide(leaf.shape[1], axes.context):
        return P(batch or None, axes.context)
    return P(batch) if batch else None


def batch_axes(leaf: Leaf, axes: MeshRoles) -> tuple[str, ...]:
    """The axes that split the batch: those of data, and of experts if it has enough rows."""
    both = axes.data + axes.expert
    found = (each for each in (both, axes.data) if leaf.shape and axes.divide(leaf.shape[0], each))
    return next(found, ())
