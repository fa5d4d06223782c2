"""Trained models in one process, without MPI and Horovod: load, score, look at embeddings, export.

inputs        what a model reads, and raw columns as keys and numbers by the recipe
raw_files     rows of CSV and Parquet files by the recipe
score_file    scores as CSV, Parquet or HDF5
sorted_table  rows by key, in memory or mapped from an export
score_module  the dense layers that lead to the score, as one torch module
predictor     the three together
export        the same as files that need neither torch nor this package
"""
