"""What a plan costs: workload, formulas, prices, calibration."""
