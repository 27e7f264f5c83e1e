"""Running a bundle. Importing this package imports neither torch nor any backend's library."""

from __future__ import annotations

from .loading import load
from .prediction import Prediction
from .predictor import Predictor
from .words import Span, Words

__all__ = ["Prediction", "Predictor", "Span", "Words", "load"]
