"""Prediction with a bundle. Importing this package imports neither torch nor any backend's library."""

from __future__ import annotations

from .loading import load
from .pipeline import Pipeline, TokenPipeline
from .prediction import Prediction
from .predictor import Predictor
from .word_predictions import Span, Words

__all__ = ["Pipeline", "Prediction", "Predictor", "Span", "TokenPipeline", "Words", "load"]
