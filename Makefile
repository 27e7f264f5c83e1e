# make demo    complete run on embedded data, a few minutes on a CPU
# make test    all tests
# make oldest  some tests, with the oldest versions that pyproject.toml declares
# make check   ruff, mypy, clang-format and clang-tidy, as in CI; in parallel: make -j2 -O check
# make docs    docs/ as a site: .build/site/index.html
# make dist    the sdist and the wheel, in .build/dist
# Each target creates .venv if missing; make oldest creates .venv-oldest.

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
EXTRA ?= dev
TESTS ?=
PIP_INSTALL = $(VENV)/bin/pip --disable-pip-version-check -q install --no-compile
INSTALL = $(PIP_INSTALL) --no-build-isolation --no-deps --force-reinstall .
# Most installed files are never imported: Python compiles and caches only the imported ones.
unexport PYTHONDONTWRITEBYTECODE

# These tests use every dependency, and fuse and export every family.
OLDEST = $(patsubst %,tests/test_%.py,build data grpc parity processing runtime) \
	tests/test_adapter.py::test_ranks_and_scales_are_those_of_peft \
	tests/test_evaluate.py::test_report_files_and_html \
	tests/test_lora.py::test_members_are_those_of_peft \
	tests/test_siglip.py \
	tests/test_sounds.py::test_parts_that_are_written_out_are_those_of_transformers \
	tests/test_tune.py::test_one_whole_member_is_tuned_as_hugging_face_would \
	tests/test_verify.py::test_every_family_on_synthetic_inputs
OLD = VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt EXTRA=test

.PHONY: demo test oldest check lint tidy types docs dist clean environments environment-oldest

demo: $(VENV)/demo.stamp
	$(INSTALL)
	$(VENV)/bin/hydrant demo --output hydrant-demo --force

test: $(VENV)/$(EXTRA).stamp
	$(INSTALL)
	$(VENV)/bin/pytest --confcutdir tests -n auto --maxprocesses 4 --dist worksteal $(TESTS)

oldest:
	$(MAKE) test $(OLD) TESTS="$(OLDEST)"

check: lint types tidy

lint: $(VENV)/dev.stamp
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/clang-format --dry-run -Werror $$(find runtime/cpp -name '*.h' -o -name '*.cpp')

types: $(VENV)/dev.stamp
	$(INSTALL)
	cd tests && ../$(VENV)/bin/mypy --config-file ../pyproject.toml

tidy: $(VENV)/dev.stamp
	CLANG_TIDY=$(CURDIR)/$(VENV)/bin/clang-tidy PYTHON=$(CURDIR)/$(VENV)/bin/python .ci/tidy

docs: $(VENV)/docs.stamp
	$(INSTALL)
	$(VENV)/bin/python tests/command_page.py
	$(VENV)/bin/zensical build --clean --strict

# The command, not python -m build, which would import our folder build/.
dist: $(VENV)/dev.stamp
	rm -rf .build/setuptools .build/dist hydrant_uq.egg-info
	PYTHONWARNINGS=ignore $(VENV)/bin/pyproject-build --no-isolation --quiet --outdir .build/dist
	@echo 'bytes and files:' && wc -c .build/dist/*

# Environments of `make check`, `make test` and `make oldest`; in parallel: make -j2.
environments: $(VENV)/dev.stamp environment-oldest

environment-oldest:
	$(MAKE) .venv-oldest/test.stamp $(OLD)

# All downloads are pinned: without isolation, the setuptools installed first builds the wheel.
$(VENV)/%.stamp: pyproject.toml $(CONSTRAINTS)
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -c $(CONSTRAINTS) setuptools
	$(PIP_INSTALL) --no-build-isolation -c $(CONSTRAINTS) '.[$*]'
	test $* != dev || $(PIP_INSTALL) --no-deps -c $(CONSTRAINTS) pytorch-ood  # its other requirements are for its models
	touch $@

clean:
	rm -rf $(VENV) .venv-oldest .build .cache hydrant-demo hydrant_uq.egg-info
