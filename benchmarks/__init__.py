"""Benchmarks: each is one command, prints a table and writes records that say if goals are met."""
