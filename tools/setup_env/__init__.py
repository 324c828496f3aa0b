"""Sets up the virtual environment that `make` runs everything in.

Standard library only: it runs before anything is installed. Start it with
`PYTHONPATH=tools python -m setup_env` (the Makefile does).
"""
