# Every target sets up .venv by itself, and only when pyproject.toml or constraints.txt changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNS ?= runs/demo
TABLE ?= runs/methods
METHODS := nt at at-l2 half trades fat iat rst score score-pgd agr part fast-at mart at-awp hat lbgat \
	avg max msd e-at ramp rmc \
	generalist-d-natural generalist-d-norms generalist-t generalist-d-trades generalist-t-mart \
	generalist-late-d generalist-late-half generalist-late-t \
	generalist-5 generalist-7 generalist-10
SEED ?= 0
MUTATIONS ?= 20000
CORRUPTIONS ?= 1000
SECONDS ?= 1800
CORES := $(shell getconf _NPROCESSORS_ONLN)

.DEFAULT_GOAL := help
.PHONY: help setup demo methods test long fuzz kills ranks lint bench docs clean

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1|/' | column -t -s '|'

setup: $(READY) ## install everything into .venv

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev,tensorboard,onnx,wandb]'
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps adv-lib
	@touch $@

demo: $(READY) ## train NT, AT, AT-ℓ2 and two Generalists on digits, dial the late one, write a page about all (a few minutes)
	@rm -rf $(RUNS)
	$(BIN)/generalist demo --out $(RUNS)

# Fast-AT ends early where its watch finds that it has overfitted: there is nothing of it to compare then.
methods: $(READY) ## every method on digits, attacked by APGD-CE and APGD-T, as one table (resumable)
	-@printf '%s\n' $(METHODS) | OMP_NUM_THREADS=1 xargs -P $(CORES) -I% \
		$(BIN)/generalist train digits-% --set select=last --out $(TABLE)/% --resume --quiet
	-@dirname $(TABLE)/*/summary.json | OMP_NUM_THREADS=1 xargs -P $(CORES) -I% \
		$(BIN)/generalist eval % --suite quick --global --quiet > /dev/null
	$(BIN)/generalist compare $$(dirname $(TABLE)/*/summary.json) --suite quick \
		--markdown $(TABLE)/table.md --scatter $(TABLE)/table.png

lint: $(READY) ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# One thread per test worker: busy workers with several threads each spin against one another. With worksteal a worker
# has a module's tests in a row, so that what they share is made once, and takes over some of another's at the end.
test: lint ## lint, then the tests with line coverage, but for those that take minutes each
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(CORES) --dist worksteal --cov --cov-report=term

long: $(READY) ## the tests that take minutes each: 500 images against AutoAttack's own code, and more (see also make ranks)
	GENERALIST_ALL_TESTS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(CORES) --dist worksteal --timeout 1800 \
		tests/attacks/test_autoattack.py tests/objectives/test_learning.py

fuzz: $(READY) ## mutated recipes and command lines, damaged run folders (SEED, MUTATIONS, CORRUPTIONS, SECONDS)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/fuzz.py --seed $(SEED) --mutations $(MUTATIONS) \
		--corruptions $(CORRUPTIONS) --seconds $(SECONDS)

ranks: $(READY) ## the tests with many processes, all of them (30 killed ranks, up to 6 at once): about a quarter of an hour
	GENERALIST_ALL_TESTS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/distributed/test_ranks.py

kills: $(READY) ## 200 random SIGKILLs in training and evaluation, each resumed, the results compared bit for bit
	GENERALIST_KILLS=200 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/runs/test_kills.py

bench: $(READY) ## speed against the textbook loop and against the bare passes, as ratios
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/step.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/methods.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/attack.py

docs: $(READY) ## the documentation as a site; open site/index.html, no server and no network are needed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site: site/index.html"

clean: ## remove .venv, caches and the demo's runs
	rm -rf $(VENV) $(RUNS) site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
