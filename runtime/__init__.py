"""Running a bundle: predict with it, verify a backend against the PyTorch reference, calibrate and profile it.

Importing this package imports neither torch nor any backend's library.
"""

from __future__ import annotations

from .calibrating import CalibrationReport, calibrate
from .prediction import Prediction
from .predictor import Predictor, load
from .profile_report import ProfileReport
from .profiling import profile
from .verification import VerifyReport, verify

__all__ = [
    "CalibrationReport",
    "Prediction",
    "Predictor",
    "ProfileReport",
    "VerifyReport",
    "calibrate",
    "load",
    "profile",
    "verify",
]
