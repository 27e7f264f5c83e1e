# make demo    the main job on embedded data, a few minutes on a CPU
# make test    every test
# make check   ruff, mypy and clang-format, as CI runs them
# make docs    docs/ as a site: .build/site/index.html
# Each makes .venv first if it is not there.

PYTHON ?= python3
VENV ?= .venv
PIP = $(VENV)/bin/pip --disable-pip-version-check -q
# setuptools would carry modules that were deleted since its last build into the new wheel
INSTALL = rm -rf .build/setuptools hydrant_uq.egg-info && $(PIP) install --no-deps --force-reinstall .

.PHONY: demo test check docs clean

demo: $(VENV)/demo.stamp
	$(INSTALL)
	$(VENV)/bin/hydrant demo --output hydrant-demo --force

test: $(VENV)/dev.stamp
	$(INSTALL)
	$(VENV)/bin/pytest -n auto --maxprocesses 4 --dist worksteal

check: $(VENV)/dev.stamp
	$(INSTALL)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/clang-format --dry-run -Werror $$(find runtime/cpp -name '*.h' -o -name '*.cpp')
	cd tests && ../$(VENV)/bin/mypy --config-file ../pyproject.toml

docs: $(VENV)/docs.stamp
	$(INSTALL)
	$(VENV)/bin/python tests/command_page.py
	$(VENV)/bin/zensical build --clean --strict

$(VENV)/%.stamp: pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) .build .cache hydrant-demo hydrant_uq.egg-info
