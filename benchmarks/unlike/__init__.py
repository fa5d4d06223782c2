"""Predicted against measured throughput on Slurm clusters whose nodes really differ."""
