"""The zoo's models that are written with torch.nn alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.zoo.model import BATCH, WORDS, ZooModel


def _built(kind: str, *args: Any) -> Callable[[], Any]:
    def build() -> Any:
        from weft.zoo import networks

        return getattr(networks, kind)(*args)

    return build


def _random(
    **shapes: tuple[int, ...] | tuple[tuple[int, ...], int],
) -> Callable[[], dict[str, Any]]:
    """Random arguments: floats of a shape, or integers of a shape below a bound."""

    def inputs() -> dict[str, Any]:
        import torch

        tensors: dict[str, Any] = {}
        for name, held in shapes.items():
            match held:
                case (tuple() as shape, int() as bound):
                    tensors[name] = torch.randint(0, bound, shape)
                case _:
                    tensors[name] = torch.randn(*held)
        return tensors

    return inputs


def _row(name: str, family: str, kind: str, *args: Any, **shapes: Any) -> ZooModel:
    return ZooModel(name, family, _built(kind, *args), _random(**shapes))


_IMAGE = (BATCH, 3, 32, 32)
_SMALL = (BATCH, 3, 16, 16)
_WORDS = ((BATCH, 12), WORDS)
_GRAPH: dict[str, Any] = {"x": (16, 8), "edges": ((2, 48), 16)}

HANDWRITTEN = (
    _row("mlp", "basic", "Mlp", x=(BATCH, 32)),
    _row("resnet", "vision", "ResNet", x=_IMAGE),
    _row("vgg", "vision", "VggNet", x=_IMAGE),
    _row("densenet", "vision", "DenseNet", x=_SMALL),
    _row("mobilenet", "vision", "MobileNet", x=_SMALL),
    _row("mixer", "vision", "Mixer", x=_SMALL),
    _row("unet", "diffusion", "UNet", x=(BATCH, 4, 8, 8), time=((BATCH,), 1000)),
    _row(
        "dit", "diffusion", "DiffusionTransformer",
        x=(BATCH, 4, 8, 8), time=((BATCH,), 1000), label=((BATCH,), 10),
    ),
    _row("vae", "diffusion", "Autoencoder", x=_SMALL, noise=(BATCH, 8)),
    _row("lstm", "recurrent", "Recurrent", "LSTM", WORDS, ids=_WORDS),
    _row("gru", "recurrent", "Recurrent", "GRU", WORDS, ids=_WORDS),
    _row("wavenet", "audio", "TemporalConvolution", x=(BATCH, 1, 24)),
    _row("graph_convolution", "graphs", "GraphConvolution", **_GRAPH),
    _row("graph_attention", "graphs", "GraphAttention", **_GRAPH),
    _row("nerf", "basic", "RadianceField", points=(BATCH, 6, 3), distances=(BATCH, 6)),
    _row("dlrm", "basic", "Recommender", dense=(BATCH, 4), sparse=((BATCH, 3, 5), 40)),
    _row(
        "segmenter", "vision", "Segmenter",
        x=_IMAGE, points=(BATCH, 3, 2), kinds=((BATCH, 3), 2),
    ),
    _row("transformer", "text", "Encoder", WORDS, source=_WORDS, target=((BATCH, 8), WORDS)),
)  # fmt: skip
