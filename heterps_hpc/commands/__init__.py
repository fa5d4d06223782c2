"""The verbs of the command line, one step each; the only part that sees all others."""
