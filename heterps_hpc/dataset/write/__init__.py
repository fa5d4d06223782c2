"""What data_prep writes a click log with."""
