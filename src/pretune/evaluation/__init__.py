"""What models are worth: intervals, calibration, reports."""
