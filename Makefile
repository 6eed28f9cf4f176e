# Every target that is built sets itself up. `make` lists them.
SHELL := /bin/bash
PY := .venv/bin/python
.DEFAULT_GOAL := help
.PHONY: help root setup demo test unit oracle mutants some-mutants sandbox changed-sandbox sandbox-conformance sandbox-tests parts e2e conformance clean-room gpu bench lint docs site native flaky soak

help:
	@awk -F':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv from the hashed requirements
	@scripts/setup

# Test files are spread over WORKERS processes, a file at a time; those with the longest time limits come first.
WORKERS := 2
PYTEST := $(PY) -m pytest --durations=20
SPREAD := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# They are set up already.
SET_UP := --old-file=setup --old-file=native
QUIETLY := --no-print-directory $(SET_UP)

test: setup native ## all tests that need neither root nor Go; of mutants and sandbox only what a change concerns
	@$(MAKE) $(QUIETLY) unit some-mutants changed-sandbox

# The native tests run a second and a third time under sanitizers, unless nothing of theirs has changed (exit code 3).
unit: setup native
	@code=0; $(PY) -m tests.selection sanitizers || code=$$?; \
	set -x; $(PYTEST) $(SPREAD) $$([ $$code != 3 ] || echo --ignore=tests/native/test_sanitizers.py) \
	  tests/unit $(wildcard tests/integration) tests/attacks tests/chart tests/native tests/oracle tests/recorded

CASES := 500
oracle: setup ## only the comparisons with the slow reference filter (CASES: how many)
	HAMI_ORACLE_CASES=$(CASES) $(PYTEST) tests/oracle

mutants: setup ## the proof that the tests notice deliberate errors in the product, all of them
	$(PYTEST) -n $(WORKERS) --dist loadgroup tests/mutants

# At most so many of each list, chosen by a seed that is printed (tests/mutants/choosing.py).
SOME := 3
some-mutants: setup native
	HAMI_MUTANTS=$(SOME) $(PYTEST) -n $(WORKERS) --dist loadgroup tests/mutants

sandbox: setup native ## only the tests on the embedded cluster: conformance, real kubectl, the demo
	@$(MAKE) $(QUIETLY) --jobs=2 --output-sync=target sandbox-conformance sandbox-tests

# Exit code 3 says that nothing has changed that these tests can reach; whatever else happens, they run.
changed-sandbox: setup native
	@suites=; for suite in conformance sandbox; do \
	  code=0; $(PY) -m tests.selection $$suite || code=$$?; \
	  [ $$code = 3 ] || case $$suite in conformance) suites+=" sandbox-conformance";; sandbox) suites+=" sandbox-tests";; esac; \
	done; \
	[ -z "$$suites" ] || $(MAKE) $(QUIETLY) --jobs=2 --output-sync=target $$suites

sandbox-conformance: setup
	$(PY) -m sandbox.tests.cluster.conformance --durations=20

sandbox-tests: setup native
	$(PYTEST) $(SPREAD) sandbox/tests

lint: setup ## ruff, mypy --strict, import-linter, generated pages current
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports
	$(PY) -m scripts.reference --check
	$(PY) -m tests.attacks.report --check

docs: setup ## write the generated pages, docs/reference, from code and chart
	$(PY) -m scripts.reference

site: ## the web site of docs/, into build/site; a link that leads nowhere fails
	@scripts/site

bench: setup native ## the benchmarks; each prints ratios against a baseline of the same run
	$(PY) -m benchmarks.filter
	$(PY) -m benchmarks.filter --vendors --nodes 5000
	$(PY) -m benchmarks.extender
	$(PY) -m benchmarks.bursts
	$(PY) -m benchmarks.lists
	$(PY) -m benchmarks.webhook
	$(PY) -m benchmarks.isolation
	$(PY) -m benchmarks.sandbox

# Only what the demo loads, for this machine: a minute's difference.
demo: setup ## the main job on an embedded cluster: no Kubernetes, GPU or root (DEMO: flags, see `hami demo --help`)
	@$(PY) -m native.build --arch $$(uname -m) libvgpu.so libvgpu-beside.so fakegpu/libcuda.so.1 fakegpu/libnvidia-ml.so.1 probe
	@exec .venv/bin/hami demo $(DEMO)

parts: setup ## build the real Kubernetes of the tests, once (needs Go; kept in ~/.cache/hami/parts)
	$(PY) -m tests.e2e.parts

root:
	@[ "$$(id -u)" = 0 ] || { echo "the real Kubernetes of the tests needs root (namespaces, mounts, control groups): run make e2e as root" >&2; exit 1; }

e2e: root parts ## the product on real Kubernetes, and `make demo` on a clean machine (needs root)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target conformance clean-room
	$(PYTEST) $(SPREAD) --timeout=600 tests/e2e

conformance: root parts
	$(PY) -m tests.e2e.cluster run --nodes 1 --name conformance \
	  sh -c 'HAMI_CONFORMANCE_KUBECONFIG=$$KUBECONFIG \
	    HAMI_CONFORMANCE_COMPACT="$(PY) -m tests.e2e.cluster.compact {revision}" \
	    exec $(PYTEST) tests/conformance'

clean-room: root parts
	$(PY) -m pytest --timeout=600 -s tests/clean_room

gpu: native ## the product on a real GPU, beside the same without it (GPU_PYTHON: a Python with torch); writes docs/gpu-results.md
	$(PY) -m tests.gpu.run

native: setup ## libvgpu.so, the stand-in driver and the probe, for both architectures
	$(PY) -m native.build

N := 10
flaky: setup native ## repeat tests and name those that failed (SUITE: pytest paths, N: how often)
	@[ -n "$(SUITE)" ] || { echo "make flaky: SUITE is empty; name what to repeat: make flaky SUITE=tests/unit/kube N=20" >&2; exit 2; }
	@$(PY) -m tests.flaky --times $(N) $(SUITE)

soak: setup native ## what is too long for CI, for a night (SHORT=1: a few minutes); writes docs/soak-results.md
	$(PY) -m tests.soak.run $(if $(SHORT),--short) $(if $(ONLY),--only $(ONLY))
