"""Functions whose gradients a user has written: one op each in an exported graph, until replay."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import Any

from weft.errors import Unsupported
from weft.records import dataclass

APPLICATION = "weft.apply_function.default"
_SCHEMA = "(Tensor[] tensors, int number) -> Tensor[]"
_TENSOR = object()
_numbers = itertools.count()
_applications: dict[int, Application] = {}  # of the programs that are being traced


@dataclass(slots=True)
class Application:
    """One call of a `torch.autograd.Function`: its arguments, where each tensor is numbered."""

    apply: Any  # the method of the class
    leaves: Sequence[Any]
    places: Sequence[int]  # of the tensors
    tree: Any
    outputs: Sequence[Any] = ()  # the results, with a mark in the place of each tensor
    output_tree: Any = None

    def __call__(self, tensors: Sequence[Any]) -> Any:
        """The function's results for these tensors."""
        from torch.utils._pytree import tree_unflatten

        leaves = [*self.leaves]
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return self.apply(*tree_unflatten(leaves, self.tree))

    def tensors_for(self, tensors: Sequence[Any]) -> list[Any]:
        """The tensors among the results."""
        import torch
        from torch.utils._pytree import tree_flatten

        versions = [tensor._version for tensor in tensors]
        with torch.no_grad():
            leaves, self.output_tree = tree_flatten(self(tensors))
        if versions != [tensor._version for tensor in tensors]:
            raise Unsupported(
                f"{self.apply.__self__.__name__}.forward changes an argument in place",
                help="return a new tensor, without ctx.mark_dirty",
            )
        made = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.outputs = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        given = {id(tensor) for tensor in tensors}
        # The results of an op are no arguments of it.
        return [each.clone() if id(each) in given else each for each in made]

    def results(self, tensors: Sequence[Any]) -> Any:
        """The function's results with these tensors in them."""
        from torch.utils._pytree import tree_unflatten

        left = iter(tensors)
        leaves = [next(left) if each is _TENSOR else each for each in self.outputs]
        return tree_unflatten(leaves, self.output_tree)


@cache
def _define() -> Any:
    """Define `weft::apply_function`: a numbered call of a function, by its tensors."""
    import torch

    def apply(tensors: Sequence[Any], number: int) -> list[Any]:
        return _applications[number].tensors_for(tensors)

    op = torch.library.custom_op("weft::apply_function", apply, mutates_args=(), schema=_SCHEMA)
    op.register_fake(apply)
    return op


@contextmanager
def function_calls() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """The lifetime of the calls that an exported graph has; gives the context to export it in."""
    numbers: list[int] = []
    try:
        yield partial(_kept_functions, numbers)
    finally:
        for number in numbers:
            del _applications[number]


@contextmanager
def _kept_functions(numbers: list[int]) -> Iterator[None]:
    """Within it, calls of `torch.autograd.Function` are ops, not the ops of their forward pass.

    Export forgets how their gradients are computed: it would be that of the forward pass's ops.
    """
    import torch
    from torch.utils._pytree import tree_flatten

    op, base = _define(), torch.autograd.Function
    original = base.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        bound = original.__get__(None, cls)
        leaves, tree = tree_flatten(args)
        places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        # The gradients of PyTorch's own functions, such as checkpoint's, are those of their ops.
        is_own = cls.__module__.partition(".")[0] == "torch"
        if is_own or kwargs or not places or torch._C._are_functorch_transforms_active():
            return bound(*args, **kwargs)
        number = next(_numbers)
        numbers.append(number)
        application = _applications[number] = Application(bound, leaves, places, tree)
        return application.results(op([leaves[n] for n in places], number))

    setattr(base, "apply", classmethod(apply))  # noqa: B010  # mypy has it as a method
    try:
        yield
    finally:
        setattr(base, "apply", original)  # noqa: B010


def replayed(tensors: Sequence[Any], number: int) -> list[Any]:
    """The tensors that a function returns, as autograd records it."""
    import torch
    from torch.utils._pytree import tree_leaves

    made = tree_leaves(_applications[number](tensors))
    return [leaf for leaf in made if isinstance(leaf, torch.Tensor)]
