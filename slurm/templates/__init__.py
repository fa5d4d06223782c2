"""The sbatch templates, as a package so that an installed copy finds them too."""
