"""Reductions of split dims, with the initial value counted once."""

from __future__ import annotations

from weft.ops.combiners import IDEMPOTENT, identity
from weft.partition.partitioners.partials import fold_partials
from weft.partition.piece import Piece
from weft.partition.site import NodeSite, is_all
from weft.partition.strategy.choose import unreduced_axes


def reduce(site: NodeSite) -> tuple[Piece, ...]:
    """A local reduction; only the first device along the axes uses the initial value."""
    count = len(site.node.operands) // 2
    combine = next((f.combine for f in site.rule.factors if f.role == "reduction"), None)
    if combine is None and unreduced_axes(site.rule, site.chosen):
        return fold_partials(site)
    if site.partial is not None and combine is not None and combine not in IDEMPOTENT:
        for n in range(count, 2 * count):
            init = site.operands[n]
            nothing = identity(combine, init.type.dtype)
            if not is_all(site.node.operands[n], nothing):
                value = site.builder.only_first(init.value, site.partial.axes, nothing)
                site.operands[n] = init.moved(value, init.split)
    return site.plain()
