"""DTensor placements of a module that PyTorch has parallelized, as a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.capture.captured import Leaf
from weft.capture.shardings import Spelled
from weft.capture.torch.plans.by_name import PlannedShardings
from weft.capture.torch.plans.ready import AxesByDim, input_sharding, mesh_roles, spelled
from weft.errors import WeftError
from weft.mesh import Mesh


def placed_plan(
    parallelized: Any, state: Sequence[Leaf], inputs: Sequence[Leaf], mesh: Mesh | None
) -> PlannedShardings:
    """The shardings by the DTensor placements of a module that PyTorch has parallelized.

    Parameters that are split along data axes are gathered where they are used, as by FSDP.
    """
    if mesh is None:
        raise WeftError("plan=module needs a mesh", help="give mesh=weft.Mesh(data=2, tp=4)")
    axes, placements = mesh_roles(mesh), _placements(parallelized)
    if not placements:
        raise WeftError(
            f"plan: no parameter of the {type(parallelized).__name__} is a DTensor",
            help="give the module that parallelize_module or fully_shard has changed, or a dict",
        )
    shardings: list[Spelled] = []
    gathered: dict[int, Spelled] = {}
    for n, leaf in enumerate(state):
        split = placements.get(leaf.name, {})
        whole = {dim: tuple([axis for axis in along if axis not in axes.data])
                 for dim, along in split.items()}  # fmt: skip
        by_data = [dim for dim in split if whole[dim] != split[dim]]
        shardings.append(spelled(leaf, split, priority=by_data) if split else None)
        if by_data:
            gathered[n] = spelled(leaf, whole)
    return PlannedShardings(
        [*shardings, *[input_sharding(leaf, axes) for leaf in inputs]], gathered
    )


def _placements(module: Any) -> dict[str, AxesByDim]:
    """The axes that split each dim of the DTensors in a module, by name."""
    splits: dict[str, AxesByDim] = {}
    for held in (module.named_parameters, module.named_buffers):
        for name, tensor in held(remove_duplicate=False):
            if not hasattr(tensor, "placements"):
                continue
            names = tensor.device_mesh.mesh_dim_names
            if names is None:
                raise WeftError(
                    f"plan: the device mesh of {name} has no names",
                    help="give init_device_mesh(..., mesh_dim_names=...) those of Weft's mesh",
                )
            split: AxesByDim = {}
            pairs = [*zip(names, tensor.placements, strict=True)]
            # A strided shard is one of the shard that the axes after it have made.
            for axis, placement in sorted(pairs, key=lambda pair: hasattr(pair[1], "split_factor")):
                if placement.is_partial():
                    raise WeftError(
                        f"plan: {name} is a partial sum along {axis}",
                        help="give parameters the placements Shard or Replicate",
                    )
                if not placement.is_replicate():
                    split[placement.dim] = (*split.get(placement.dim, ()), axis)
            splits[name] = split
    return splits
