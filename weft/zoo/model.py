"""A model of the zoo: its module from a tiny random configuration, and arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.errors import WeftError, missing_extra
from weft.records import dataclass

WORDS = 128  # of every vocabulary
BATCH = 8  # divides over the meshes of 4 and 8


@dataclass(frozen=True, slots=True)
class ZooModel:
    """One model: a module, and the keyword arguments of a call."""

    name: str
    family: str  # vision, text, experts, ...
    build: Callable[[], Any]
    inputs: Callable[[], dict[str, Any]]
    library: str = "torch"  # the package that has its code
    in_evaluation: str = ""  # why its gradients are those of evaluation mode

    def make(self, seed: int = 0) -> tuple[Any, dict[str, Any]]:
        """The module in evaluation mode, with random weights, and its arguments."""
        torch = need_torch()
        if self.library == "transformers":
            need_transformers()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            module = self.build().eval()
            _spread(module)
            return module, self.inputs()


def _spread(module: Any) -> None:
    """Replace constant parameters, such as a norm's ones, by numbers that differ."""
    import torch

    with torch.no_grad():
        for parameter in module.parameters():
            flat = parameter.reshape(-1)
            if parameter.numel() > 1 and bool((flat == flat[0]).all()):
                parameter.add_(0.1 * torch.randn_like(parameter))


def need_torch() -> Any:
    """PyTorch, or an error that says how it is installed."""
    try:
        import torch
    except ImportError:
        raise missing_extra("torch", "torch", "the zoo of models") from None
    return torch


def need_transformers() -> Any:
    """Hugging Face's transformers, or an error that says how it is installed."""
    try:
        import transformers
    except ImportError:
        raise missing_extra("transformers", "zoo", "most models of the zoo") from None
    return transformers


def select_models(models: dict[str, ZooModel], words: list[str]) -> list[ZooModel]:
    """The models by name or family; all of them without a word."""
    selection = [m for m in models.values() if not words or m.name in words or m.family in words]
    known = {m.name for m in selection} | {m.family for m in selection}
    for word in words:
        if word not in known:
            families = ", ".join(dict.fromkeys(m.family for m in models.values()))
            raise WeftError(
                f"the zoo has no model or family {word!r}",
                help=f"`weft zoo --list` names the models; families are {families}",
            )
    return selection
