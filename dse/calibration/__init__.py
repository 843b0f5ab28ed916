"""Constants of an architecture fitted to measured rows: bounded, with priors, judged on rows not seen."""

from dse.calibration.calibrate import Calibration, Request, calibrate
from dse.calibration.document import calibrated_text

__all__ = ["Calibration", "Request", "calibrate", "calibrated_text"]
