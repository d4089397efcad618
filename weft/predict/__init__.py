"""Predictions of a step's time and memory on machines that need not be there."""

from weft.predict.prediction import PredictedMemory, Prediction, axes_text
from weft.predict.predictor import Predictor, predict, predicted, program_for

__all__ = [
    "PredictedMemory",
    "Prediction",
    "Predictor",
    "axes_text",
    "predict",
    "predicted",
    "program_for",
]
