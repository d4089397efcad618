"""Caches of keys and values of Hugging Face's models as pytrees: arguments and results of calls."""

from __future__ import annotations

import sys
from typing import Any

from weft.errors import WeftError


def register_caches(module: Any) -> None:
    """Let PyTorch look into the caches that a module's models take and return.

    By the registration that transformers' own exporter has. The one for ExecuTorch forgets how many
    tokens a sliding window has seen.
    """
    if module is None or "transformers" not in sys.modules:
        return
    from transformers import PreTrainedModel

    models = [each for each in module.modules() if isinstance(each, PreTrainedModel)]
    if not models:
        return
    try:
        from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model
    except ImportError:  # an older version, whose caches are refused when they are returned
        return
    for each in {type(model): model for model in models}.values():
        register_cache_pytrees_for_model(each)


def check_caches(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse caches as arguments that keep state outside of tensors: a call would not change it."""
    if "transformers" not in sys.modules:
        return
    from transformers.cache_utils import Cache, StaticCache, StaticLayer

    for value in (*args, *kwargs.values()):
        if not isinstance(value, Cache):
            continue
        kinds = {type(layer).__name__: type(layer) for layer in getattr(value, "layers", ())}
        if type(value) is not StaticCache or {*kinds.values()} - {StaticLayer}:
            found = f" of {', '.join(sorted(kinds))}" if kinds else ""
            raise WeftError(
                f"the argument is a {type(value).__name__}{found}: a call would not change it",
                help="give a transformers.StaticCache of full attention, which changes in place; "
                "or none: then the call returns a new one",
            )
