"""Small MPI programs that stand where the trainer stands, each with one behaviour to test."""
