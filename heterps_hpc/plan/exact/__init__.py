"""The certified optimum, the yardstick for every scheduler."""
