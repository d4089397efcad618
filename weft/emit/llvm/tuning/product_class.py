"""Shape classes of contractions that share a best candidate."""

from __future__ import annotations

from dataclasses import fields, replace

from weft.emit.llvm.product.blas import multiplies
from weft.emit.llvm.product.blocking.blocking import Chip, ProductShape
from weft.emit.llvm.product.emit import described
from weft.emit.llvm.product.product import Product
from weft.emit.llvm.product.shape import bare_load, plain_store
from weft.kernels.kernel import Kernel
from weft.kernels.option_names import round_up
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class ProductClass:
    """The unit of tuning: a rounded shape, and properties of prologue and epilogue."""

    shape: ProductShape
    before: bool  # operands are computed during packing
    after: bool  # the epilogue does more than store sums
    by_library: bool  # a BLAS could compute it

    @property
    def text(self) -> str:
        """The cache key: `float 1x64x64x96, fma, lhs along k, ...`."""
        s = self.shape
        sizes = f"{s.batch}x{s.rows}x{s.columns}x{s.k}"
        words = [f"{s.kind} {sizes}", s.multiply, f"lhs along {s.lhs_lines}"]
        words.append(f"rhs along {s.rhs_lines}")
        words += [f"each rhs {s.repeats} times"] if s.repeats > 1 else []
        for field in fields(ProductShape):
            value = getattr(s, field.name)
            if field.name.endswith(("_direct", "_stored", "_dense", "inner", "offset")) and value:
                words.append(field.name if value is True else f"{field.name} {value}")
        for name in ("before", "after", "by_library"):
            words += [name] if getattr(self, name) else []
        return ", ".join(words)


def class_of(kernel: Kernel, chip: Chip) -> ProductClass:
    """The class of a packed kernel."""
    product, shape = described(kernel, chip)
    sides = (product.contract.lhs, product.contract.rhs)
    return ProductClass(
        _rounded(shape),
        any(bare_load(product, side) is None for side in sides),
        _has_after(product),
        multiplies(product, shape),
    )


def _has_after(product: Product) -> bool:
    return bool(product.reduced) or plain_store(product) is None


def _rounded(shape: ProductShape) -> ProductShape:
    sizes = (shape.batch, shape.rows, shape.columns, shape.k)
    batch, rows, columns, k = map(round_up, sizes)
    again = round_up(shape.repeats)
    return replace(shape, batch=batch, rows=rows, columns=columns, k=k, repeats=again)
