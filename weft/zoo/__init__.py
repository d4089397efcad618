"""Models from tiny random configurations that Weft is checked on, against eager PyTorch."""

from weft.zoo.handwritten import HANDWRITTEN
from weft.zoo.model import ZooModel, select_models
from weft.zoo.transformers import TRANSFORMERS

ZOO = {model.name: model for model in (*HANDWRITTEN, *TRANSFORMERS)}

__all__ = ["ZOO", "ZooModel", "select_models"]
