"""Running a bundle: predict with it, verify a backend against the PyTorch reference, and profile it.

Importing this package imports neither torch nor any backend's library.
"""

from __future__ import annotations

from .prediction import Prediction
from .predictor import Predictor, load
from .profile_report import ProfileReport
from .profiling import profile
from .verification import VerifyReport, verify

__all__ = ["Prediction", "Predictor", "ProfileReport", "VerifyReport", "load", "profile", "verify"]
