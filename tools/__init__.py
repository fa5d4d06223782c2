"""Programs for building and checking this project; not installed with it."""
