"""What ranks read a click log with."""
