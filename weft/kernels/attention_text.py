"""Parsing of attention kernels: their keyword attributes, and the kernel that these describe."""

from __future__ import annotations

from typing import Any, TypeAlias

from weft.kernels.attention import Access, Attention, AttentionMask, Gradients, Window
from weft.kernels.kernel import Operand
from weft.kernels.tokens import Line, raise_unknown_name

LabelledAccess: TypeAlias = tuple[Access, dict[str, Any]]  # and the attributes after it


def attention_words(line: Line) -> dict[str, Any]:
    """Keyword attributes `scale=0.25 empty=nan` up to the end of the line."""
    words: dict[str, Any] = {}
    while line.token:
        name = line.name()
        line.expect("=")
        if name == "empty":
            words[name] = line.accept("zero", "nan") or raise_unknown_name("word", line.token)
        elif name == "hides":
            words[name] = bool(line.number())
        elif name in ("scale", "bias_scale", "fill", "softcap"):
            words[name] = float(line.real())
        else:
            words[name] = line.integer()
    return words


def attention_of(
    name: str,
    outer: tuple[int, ...],
    operands: tuple[Operand, ...],
    options: tuple[tuple[str, int], ...],
    words: dict[str, Any],
    accesses: dict[str, LabelledAccess],
) -> Attention:
    """The kernel with these attributes and labelled accesses."""
    for label in ("q", "k", "v", "out", "lse", "bias"):
        if label in accesses:
            words[label] = accesses.pop(label)[0]
    if "mask" in accesses:
        access, attributes = accesses.pop("mask")
        words["mask"] = AttentionMask(access, **attributes)
    if accesses:  # the remaining labels are those of gradients: d_out, d_q, ...
        words["gradients"] = _gradients(accesses)
    window = Window(words.pop("left", None), words.pop("right", None), words.pop("shift", 0))
    fixed: dict[str, Any] = {"window": window, "operands": operands, "options": options}
    return Attention(name, outer, **fixed, **words)


def _gradients(accesses: dict[str, LabelledAccess]) -> Gradients:
    # Without their prefix `d_`, labels are the names of the fields.
    fields: dict[str, Any] = {name[2:]: at for name, (at, _) in accesses.items()}
    scales = {f"{name[2:]}_scale": a["scale"] for name, (_, a) in accesses.items() if a}
    return Gradients(**fields, **scales)
