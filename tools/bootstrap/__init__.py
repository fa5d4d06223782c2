"""`make setup`: from a bare Python to an environment that trains, with nothing but pip.

Standard library only, because it runs before anything is installed. Each step has a key
made of everything that its result depends on; a step whose key is stamped is skipped.
"""
