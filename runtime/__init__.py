"""Running a bundle. Importing this package imports neither torch nor any backend's library."""

from __future__ import annotations

from .prediction import Prediction
from .predictor import Predictor, load

__all__ = ["Prediction", "Predictor", "load"]
