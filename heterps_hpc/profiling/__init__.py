"""From timings and data sheets to a profile."""
