"""Measures pools and links with the code that trains."""
