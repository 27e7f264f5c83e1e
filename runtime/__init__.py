"""Running a bundle. Importing this package imports neither torch nor any backend's library."""

from __future__ import annotations

from .prediction import Prediction
from .predictor import Predictor, load
from .words import Span, Words

__all__ = ["Prediction", "Predictor", "Span", "Words", "load"]
