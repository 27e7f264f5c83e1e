"""Running a bundle: predict with it, and verify a backend against the PyTorch reference.

Importing this package imports neither torch nor any backend's library.
"""

from __future__ import annotations

from .prediction import Prediction
from .predictor import Predictor, load
from .verification import VerifyReport, verify

__all__ = ["Prediction", "Predictor", "VerifyReport", "load", "verify"]
