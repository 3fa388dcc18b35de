# Two commands do everything on a fresh machine: `make demo` and `make test`.
# They need Python >= 3.11, a C++ compiler and make.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test check test-unit test-fault test-gpu test-machine test-recipes test-s3 fuzz bench-freshness bench-daemon bench-store bench-fleet bench-flight table-lean bench-load bench-edit format clean install-systemd

demo: $(VENV)/installed
	$(BIN)/preheat demo

# In so many processes at once; `make test TEST_PROCESSES=0` runs all tests in one.
TEST_PROCESSES ?= 2

test: $(VENV)/installed-tests
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --max-worker-restart 2

check: $(VENV)/installed-tests
	$(BIN)/ruff format --check lib daemon tests
	$(BIN)/ruff check lib daemon tests
	$(BIN)/mypy

test-unit: $(VENV)/installed-tests
	$(BIN)/python -m pytest tests/unit

# Loads, deaths and full disks, in their long versions; the figures go to docs/reliability.md. Half an hour.
test-fault: $(VENV)/installed-tests
	PREHEAT_FAULT=full PREHEAT_FAULT_RESULTS=$(CURDIR)/build/fault.json $(BIN)/python -m pytest tests/fault
	cd tests && ../$(BIN)/python -m support.fault_table ../build/fault.json ../docs/reliability.md

# By hand, on a machine with a GPU and its own torch: PYTHON is used as it is.
test-gpu:
	PYTHONPATH=lib:daemon $(PYTHON) -m pytest tests/gpu -m gpu -p no:cacheprovider

# By hand, as root on Debian with mmdebstrap and systemd-container: a fresh system with a systemd of its own
# follows docs/service.md word for word, and two of them the beginning of docs/jobs.md. MACHINE keeps that system
# (about 2 GB) for the next time.
MACHINE ?= /var/tmp/preheat-machine

test-machine: $(VENV)/installed-tests
	$(BIN)/python tests/machine/walk.py $(MACHINE)
	$(BIN)/python tests/machine/boot.py $(MACHINE)

# Everything that docs/recipes promises, also where CI tries one of several that are much alike. As root.
test-recipes: $(VENV)/installed-tests
	PREHEAT_RECIPES=full $(BIN)/python -m pytest tests/integration -k "recipes or carrying or jobs_page"

# By hand: push and pull against a real server of the S3 protocol on this machine, which has its own environment
# because its libraries want other versions than ours.
S3_BIN = $(VENV)-s3/bin

test-s3:
	test -x $(S3_BIN)/python || $(PYTHON) -m venv $(VENV)-s3
	$(S3_BIN)/python -m pip install --quiet 'moto[server]>=5' s3fs msgspec click aiofiles filelock platformdirs psutil \
	  pytest pytest-asyncio pytest-timeout hypothesis
	PYTHONPATH=lib:daemon:tests $(S3_BIN)/python -m pytest --noconftest -p no:cacheprovider tests/integration/test_s3.py

# What is read from elsewhere, fuzzed for longer than CI does, and every property with examples that CI has not tried.
# With atheris installed: see tests/fault/fuzz_guided.py.
PREHEAT_FUZZ_EXAMPLES ?= 20000

fuzz: $(VENV)/installed-tests
	PREHEAT_FUZZ_EXAMPLES=$(PREHEAT_FUZZ_EXAMPLES) $(BIN)/python -m pytest tests/fault/test_fuzz.py --timeout=0
	PREHEAT_FAULT=full $(BIN)/python -m pytest $$(grep -rl '^@given' tests/unit)

# Every number that docs/freshness.md promises: times, then what real workers do after each probing edit.
bench-freshness: $(VENV)/installed-tests
	$(BIN)/python tests/bench/bench_freshness.py
	cd tests && ../$(BIN)/python -m conformance.freshness_table ../docs/freshness_table.md

# What a daemon costs while it has nothing to do, and how soon it decides: docs/performance.md.
bench-daemon: $(VENV)/installed-tests
	$(BIN)/python tests/bench/bench_daemon.py

# What a publication and a collection cost with 100 packages and with 10,000: docs/store.md.
bench-store: $(VENV)/installed-tests
	$(BIN)/python tests/bench/bench_store.py

# How fast packages travel between stores, next to a plain copy; and `preheat would-hit`: docs/performance.md.
bench-fleet: $(VENV)/installed-tests
	$(BIN)/python tests/bench/bench_fleet.py --markdown docs/performance.md

# A thousand nodes that start at once, simulated: what they build and read. docs/jobs.md.
bench-flight: $(VENV)/installed-tests
	$(BIN)/python tests/bench/bench_flight.py

# Which of 100 programs can be kept warm, and in which form: docs/lean.md. Takes about a quarter of an hour.
table-lean: $(VENV)/installed-tests
	$(BIN)/python tests/conformance/capture_table.py docs/lean.md

# How a fresh process gets to its first result, with and without preheat: docs/performance.md.
bench-load: $(VENV)/installed-tests
	$(BIN)/preheat bench load --program mlp --rounds 3 --threads 1 --markdown docs/performance.md
	$(BIN)/preheat bench load --program transformer --layers 4,1,16,64 --ways eager,caches,package,lean --rounds 3 --threads 1 --markdown docs/performance.md

# How long it takes from an edit to a fresh package: docs/performance.md. Takes about three quarters of an hour.
bench-edit: $(VENV)/installed-tests
	$(BIN)/preheat bench edit --rounds 3 --markdown docs/performance.md

# Units for systemd, with what they need: docs/service.md. BINDIR is where `preheat` is installed.
SYSTEMD_BINDIR ?= $(abspath $(BIN))
SYSTEMD_PREFIX ?= /usr/local/lib

install-systemd:
	install -d $(DESTDIR)$(SYSTEMD_PREFIX)/systemd/system $(DESTDIR)$(SYSTEMD_PREFIX)/systemd/user
	install -d $(DESTDIR)$(SYSTEMD_PREFIX)/sysusers.d $(DESTDIR)$(SYSTEMD_PREFIX)/sysctl.d
	install -d $(DESTDIR)/usr/local/share/preheat/systemd $(DESTDIR)/etc/preheat
	for unit in preheatd@.service preheatd@.socket preheat-warm@.service; do \
	  sed 's|@BINDIR@|$(SYSTEMD_BINDIR)|' systemd/$$unit \
	    > $(DESTDIR)$(SYSTEMD_PREFIX)/systemd/system/$$unit || exit 1; \
	done
	sed 's|@BINDIR@|$(SYSTEMD_BINDIR)|' systemd/user/preheatd.service \
	  > $(DESTDIR)$(SYSTEMD_PREFIX)/systemd/user/preheatd.service
	install -m 0644 systemd/sysusers.d/preheat.conf $(DESTDIR)$(SYSTEMD_PREFIX)/sysusers.d/
	install -m 0644 systemd/sysctl.d/50-preheat.conf $(DESTDIR)$(SYSTEMD_PREFIX)/sysctl.d/
	install -m 0644 systemd/drop-ins/*.conf $(DESTDIR)/usr/local/share/preheat/systemd/

format: $(VENV)/installed-tests
	$(BIN)/ruff format lib daemon tests
	$(BIN)/ruff check --fix lib daemon tests

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[daemon]'
	touch $@

$(VENV)/installed-tests: $(VENV)/installed requirements-acceptance.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[daemon,test,acceptance]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements-acceptance.txt
	touch $@
