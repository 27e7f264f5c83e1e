# make demo    the main job on embedded data, a few minutes on a CPU
# make test    every test
# make oldest  part of the tests, with the oldest versions that pyproject.toml declares
# make check   ruff, mypy, clang-format and clang-tidy, as CI runs them; make -j2 -O check at once
# make docs    docs/ as a site: .build/site/index.html
# make dist    the sdist and the wheel, in .build/dist
# Each makes .venv first if it is not there, make oldest .venv-oldest.

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
EXTRA ?= dev
TESTS ?=
PIP_INSTALL = $(VENV)/bin/pip --disable-pip-version-check -q install --no-compile
INSTALL = $(PIP_INSTALL) --no-build-isolation --no-deps --force-reinstall .
# Most of what is installed is never imported: Python compiles what is, and keeps it.
unexport PYTHONDONTWRITEBYTECODE

# Every dependency is used by one of these, and every family is fused and exported.
OLDEST = $(patsubst %,tests/test_%.py,build data graph grpc parity processing runtime) \
	tests/test_adapter.py::test_ranks_and_scales_are_those_of_peft \
	tests/test_evaluate.py::test_report_files_and_html \
	tests/test_lora.py::test_members_are_those_of_peft \
	tests/test_siglip.py::test_module_and_graphs_match_the_oracle \
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

# The command, not python -m build: that would take our folder build/ for the tool.
dist: $(VENV)/dev.stamp
	rm -rf .build/setuptools .build/dist hydrant_uq.egg-info
	$(VENV)/bin/pyproject-build --no-isolation --outdir .build/dist

# Those of `make check`, `make test` and `make oldest`; make -j2 makes them at once.
environments: $(VENV)/dev.stamp environment-oldest

environment-oldest:
	$(MAKE) .venv-oldest/test.stamp $(OLD)

# Nothing is downloaded at a version that is not pinned: without isolation the wheel is built by the setuptools installed first.
$(VENV)/%.stamp: pyproject.toml $(CONSTRAINTS)
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -c $(CONSTRAINTS) setuptools
	$(PIP_INSTALL) --no-build-isolation -c $(CONSTRAINTS) '.[$*]'
	test $* != dev || $(PIP_INSTALL) --no-deps -c $(CONSTRAINTS) pytorch-ood  # what else it names is for its models
	touch $@

clean:
	rm -rf $(VENV) .venv-oldest .build .cache hydrant-demo hydrant_uq.egg-info
