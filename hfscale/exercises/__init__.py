"""The checks behind the notebooks' exercises, a module for each notebook, and the solutions."""
