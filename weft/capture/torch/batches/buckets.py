"""Batch sizes that vary: arguments padded to a few sizes, where rows do not depend on others."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from weft.capture.captured import Captured
from weft.capture.torch.batches.rows import Evaluate, RowsDepend, result_rows
from weft.capture.torch.source import holds_tensors
from weft.errors import WeftError, warn


def bucket_of(size: int) -> int:
    """The size that a batch is padded to: the next power of two."""
    return 1 << (size - 1).bit_length() if size else 0


class BatchBuckets:
    """Calls of a program whose batch, dim 0 of its tensors, is padded to powers of two.

    Padding is checked once for each bucket, on the program itself. Where a row of the results
    depends on other rows, every size has a program of its own, which a warning says.
    """

    def __init__(self, name: str, capture: Callable[..., Captured], evaluate: Evaluate) -> None:
        self.name, self._capture, self._evaluate = name, capture, evaluate
        self._known: dict[Hashable, tuple[int | None, ...] | None] = {}  # by call and bucket

    def __call__(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run on padded arguments, and cut the results."""
        from torch.utils._pytree import tree_flatten, tree_unflatten

        leaves, tree = _flat(args, kwargs)
        size, rows = self._plan(leaves, tree)
        if rows is None:
            return run(*args, **kwargs)
        args, kwargs = tree_unflatten(_padded(leaves, size, bucket_of(size)), tree)
        results, shape = tree_flatten(run(*args, **kwargs))
        tensors = iter(rows)
        return tree_unflatten([_cut(each, tensors, size) for each in results], shape)

    def padded(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments that a call of these would run on."""
        from torch.utils._pytree import tree_unflatten

        leaves, tree = _flat(args, kwargs)
        size, rows = self._plan(leaves, tree)
        if rows is None:
            return args, kwargs
        made: tuple[Any, Any] = tree_unflatten(_padded(leaves, size, bucket_of(size)), tree)
        return made

    def _plan(self, leaves: list[Any], tree: Any) -> tuple[int, tuple[int | None, ...] | None]:
        """The batch size, and the rows of each result; None if nothing is padded."""
        size = _batch_size(leaves)
        bucket = bucket_of(size)
        return size, None if bucket == size else self._rows(leaves, tree, size, bucket)

    def _rows(
        self, leaves: list[Any], tree: Any, size: int, bucket: int
    ) -> tuple[int | None, ...] | None:
        """The rows of each result for this kind of call; None if it may not be padded."""
        key = (tree, bucket, tuple([_mark(leaf, size) for leaf in leaves]))
        if key not in self._known:
            try:
                self._known[key] = self._checked(leaves, tree, size, bucket)
            except RowsDepend as error:
                place = f" at {error.loc.describe()}" if error.loc is not None else ""
                warn(
                    f"dynamic: {self.name} is compiled for each batch size, not padded to "
                    f"{bucket}: {error.message}{place}"
                )
                self._known[key] = None
        return self._known[key]

    def _checked(
        self, leaves: list[Any], tree: Any, size: int, bucket: int
    ) -> tuple[int | None, ...]:
        """The rows of each result, by the programs of the largest and the smallest batch."""
        from torch.utils._pytree import tree_unflatten

        least = bucket // 2 + 1
        programs = []
        for count in (bucket, least):
            args, kwargs = tree_unflatten(_padded(leaves, size, count), tree)
            programs.append(self._capture(*args, **kwargs))
        one, other = programs
        state = len(one.arguments) - one.is_seeded - sum(_is_tensor(leaf) for leaf in leaves)
        inputs = [leaf for leaf in leaves if _is_tensor(leaf)]
        batch = {state + n: 0 for n, leaf in enumerate(inputs) if _has_batch(leaf, size)}
        if one.out_tree.leaves != other.out_tree.leaves:
            raise RowsDepend("a result that is no tensor depends on the batch", help="compile each")
        found = result_rows(one.module, other.module, (bucket, least), batch, self._evaluate)
        changed = len(one.updated)
        if any(dim is not None for dim in found[:changed]):
            raise RowsDepend(
                "a buffer that is updated has the size of the batch", help="compile each size"
            )
        return found[changed:]


def _is_tensor(leaf: Any) -> bool:
    import torch

    return isinstance(leaf, torch.Tensor)


def _flat(args: Any, kwargs: Any) -> tuple[list[Any], Any]:
    """The leaves of a call and their tree; an error for other programs than PyTorch's."""
    if not holds_tensors(args, kwargs):
        raise WeftError(
            "dynamic=True is an option of PyTorch programs, and no argument is a tensor of its",
            help="leave it out: a program is compiled for each size",
        )
    from torch.utils._pytree import tree_flatten

    leaves, tree = tree_flatten((args, kwargs))
    return leaves, tree


def _batch_size(leaves: list[Any]) -> int:
    """The size of dim 0 of the first tensor that has one; 1 if none has."""
    found = (leaf.shape[0] for leaf in leaves if _is_tensor(leaf) and leaf.dim())
    return next(found, 1)


def _has_batch(leaf: Any, size: int) -> bool:
    return _is_tensor(leaf) and leaf.dim() > 0 and leaf.shape[0] == size


def _mark(leaf: Any, size: int) -> Hashable:
    """The cache key of a leaf, without the batch size."""
    if not _is_tensor(leaf):
        return (type(leaf), repr(leaf))
    has_batch = _has_batch(leaf, size)
    return (has_batch, tuple(leaf.shape[int(has_batch) :]), leaf.dtype, leaf.device.type)


def _padded(leaves: list[Any], size: int, count: int) -> list[Any]:
    """Tensors of the batch with so many rows: its first ones, or copies of the last one behind."""
    made = []
    for leaf in leaves:
        if _has_batch(leaf, size):
            last = leaf[-1:].expand(max(0, count - size), *leaf.shape[1:])
            leaf = leaf[:count] if count <= size else _joined(leaf, last)
        made.append(leaf)
    return made


def _joined(leaf: Any, last: Any) -> Any:
    import torch

    return torch.cat([leaf, last])


def _cut(made: Any, rows: Any, size: int) -> Any:
    if not _is_tensor(made):
        return made
    dim = next(rows)
    return made if dim is None else made.narrow(dim, 0, size)
