# make demo | test | lint | env | clean. Everything runs in .venv, which is set up when needed.
#   make test STACK=onedl                 the onedl fork, in .venv-onedl; also: oldest (torch 2.1)
#   make test ARGS="-k swin"              arguments for pytest (or for the demo)
#   make env PYTHON=/path/to/python3.11   the interpreter to set up with
#   make env MAX_JOBS=1                   compilers to run at a time

STACK ?= official
VENV ?= .venv$(if $(filter-out official,$(STACK)),-$(STACK))
PYTHON ?=
ARGS ?=

RUN := $(VENV)/bin/python
# torch, OpenBLAS and OpenMP code start a thread for each core they see; many threads do not help
# small models.
OMP_NUM_THREADS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 8 ? n : 8)))
export OMP_NUM_THREADS

.DEFAULT_GOAL := help
.PHONY: help env demo test lint clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

env:
	@python=$$(sh tools/setup_env/find_python.sh $(PYTHON)) && \
	PYTHONPATH=tools PYTHONDONTWRITEBYTECODE=1 "$$python" -m setup_env \
		--venv "$(VENV)" --stack "$(STACK)" $(if $(PYTHON),--this-python)

demo: env
	$(RUN) tools/demo.py $(ARGS)

test: env
	$(RUN) -m pytest --durations=15 $(ARGS)

lint: env
	$(RUN) -m ruff check .

# Removes what building and testing leave. Not .venv, not work_dirs, no data.
clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find flatten_mm tools tests configs -name __pycache__ -type d -prune -exec rm -rf {} +
