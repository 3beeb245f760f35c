# What there is to do. `demo`, `test` and `programs` install what is missing (as root on Debian; elsewhere they say what to install).

MAKEFLAGS += --no-print-directory
PREFIX ?= /usr/local
SOAK_SECONDS ?= 3600
SIMULATION_STEPS ?= 1000000000

export CARGO_TERM_COLOR ?= auto
CARGO = scripts/toolchain.sh cargo
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
RELEASE = $(or $(CARGO_TARGET_DIR),target)/release

.PHONY: help build demo check test programs sanitize soak bench bench-servers bench-malloc install uninstall deb rpm tarball oci portable try-portable try-stalls reference clean

help:
	@echo 'make build                      the terrace command and libterrace.so, in $(RELEASE)'
	@echo 'make demo                       a real program under Terrace, with proof and reports (three minutes)'
	@echo 'make check                      format, documents and the unit tests of all crates (minutes)'
	@echo 'make test                       all tests'
	@echo 'make programs                   real programs as their users start them (large packages)'
	@echo 'make sanitize                   tests under AddressSanitizer (needs a nightly Rust) and valgrind'
	@echo 'make soak [SOAK_SECONDS=3600]   the long stress, twelve times as long, after a long simulation [SIMULATION_STEPS=1000000000]'
	@echo 'make bench                      benchmarks against peers'
	@echo 'make bench-servers [OPTIONS=…]  memcached and redis-server at equal memory, against zram (as root; docs/benchmarks.md)'
	@echo 'make bench-malloc [OPTIONS=…]   allocators side by side: time and memory (docs/benchmarks.md)'
	@echo 'make install [PREFIX=/usr/local], make uninstall'
	@echo 'make deb, make rpm, make tarball, make oci  packages, in $(PACKAGES) (docs/install.md)'
	@echo 'make try-portable               the portable build in roots of Debian 11 (glibc 2.31) and 13'
	@echo 'make try-stalls                 tests of whole programs while every CPU is held in bursts (as root)'
	@echo 'make reference                  docs/reference, from the program itself'
	@echo 'make clean'

build:
	@scripts/setup.sh build
	$(CARGO) build --release --workspace

demo:
	@scripts/setup.sh demo
	$(CARGO) build --release -p terrace-cli -p terrace-runtime
	python3 demo/demo.py $(RELEASE)/terrace $(TERRACE_DEMO_DIRECTORY)

# What finds most mistakes in a few minutes, once everything was built.
check:
	$(CARGO) fmt --all --check
	scripts/check-docs.sh
	scripts/check-words.sh
	scripts/check-imports.py
	$(CARGO) test --release --workspace --lib --bins

# Readers, writers and the relocator of objects in every order of their steps, in a target directory of its own.
LOOM = $(or $(CARGO_TARGET_DIR),target)/loom

# One profile for both: what is built for the programs under test serves the tests.
test:
	@scripts/setup.sh test
	$(CARGO) build --release --workspace
	$(CARGO) test --release --workspace --no-fail-fast
	RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=$(LOOM) $(CARGO) test -p terrace-objects --test protocol

programs:
	@scripts/setup.sh programs
	$(CARGO) build --release --workspace
	$(CARGO) test --release -p terrace-tests --test programs_as_started -- --ignored

# The crates that the sanitizer can follow, in a target directory of their own; pager and runtime move pages behind its back. Without leaks: tests that fork, and that never give code back, have some.
# gcc and clang poison a function's constants differently (zstd has such). `context` is compared with the C library's unwinder, which the sanitizer replaces: so it, and the allocator once more, run
# under valgrind.
SANITIZED = $(or $(CARGO_TARGET_DIR),target)/sanitize
sanitize:
	RUSTFLAGS=-Zsanitizer=address CFLAGS=-fno-sanitize-address-use-after-scope ASAN_OPTIONS=detect_leaks=0 CARGO_TARGET_DIR=$(SANITIZED) $(CARGO) +nightly test --release \
		--target $(shell uname -m)-unknown-linux-gnu -p terrace-policy -p terrace-trace -p terrace-tiers -p terrace-sampler -p terrace-alloc
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='valgrind -q --error-exitcode=9' $(CARGO) test --release -p terrace-context -p terrace-alloc --lib -- --test-threads=1

# Targets of cargo-fuzz, in a target directory of their own: that they still compile.
FUZZED = $(or $(CARGO_TARGET_DIR),target)/fuzz
soak:
	@scripts/setup.sh test
	CARGO_TARGET_DIR=$(FUZZED) $(CARGO) check --manifest-path fuzz/Cargo.toml
	$(CARGO) build --release --workspace
	TERRACE_SIMULATION_STEPS=$(SIMULATION_STEPS) $(CARGO) test --release -p terrace-pager --lib simulation -- --nocapture
	TERRACE_SOAK_SECONDS=$(SOAK_SECONDS) $(CARGO) test --release -p terrace-objects --test structures --test rows -- --nocapture
	TERRACE_SOAK_SECONDS=$(SOAK_SECONDS) $(CARGO) test --release -p terrace-tests --test no_update_is_lost --test objects_keep_what_is_written --test calls_in_any_order --test attached --test objects_move_under_eviction -- --nocapture
	TERRACE_SOAK_SECONDS=$(SOAK_SECONDS) $(CARGO) test --release -p terrace-kv --test no_value_is_wrong --test crowds_and_failures -- --nocapture
	$(CARGO) test --release -p terrace-kv --test conformance -- --ignored
	$(CARGO) test --release -p terrace-tests --test services -- --ignored
	$(MAKE) try-portable

bench:
	@scripts/setup.sh bench
	$(CARGO) build --release --workspace
	$(CARGO) run --release -p terrace-bench

bench-servers:
	@scripts/setup.sh bench
	$(CARGO) build --release --workspace
	$(CARGO) run --release -p terrace-bench -- zram-servers $(OPTIONS)

bench-malloc:
	@scripts/setup.sh bench
	$(CARGO) build --release --workspace
	$(CARGO) run --release -p terrace-bench -- malloc $(OPTIONS)

install:
	@[ -e $(RELEASE)/terrace ] && [ -e $(RELEASE)/libterrace.so ] && [ -e $(RELEASE)/libterrace_objects.a ] && \
		[ -e $(RELEASE)/terrace-kv ] || $(MAKE) build
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin $(RELEASE)/terrace $(RELEASE)/terrace-kv
	install -D -m 644 $(RELEASE)/libterrace.so $(DESTDIR)$(PREFIX)/lib/terrace/libterrace.so
	install -D -m 644 $(RELEASE)/libterrace_objects.a $(DESTDIR)$(PREFIX)/lib/terrace/libterrace_objects.a
	-strip --strip-debug $(DESTDIR)$(PREFIX)/lib/terrace/libterrace_objects.a
	-strip --strip-debug $(DESTDIR)$(PREFIX)/bin/terrace $(DESTDIR)$(PREFIX)/bin/terrace-kv $(DESTDIR)$(PREFIX)/lib/terrace/libterrace.so
	$(RELEASE)/terrace generate $(DESTDIR)$(PREFIX)/share
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include include/terrace.h include/terrace.hpp include/terrace_objects.h
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man3 man/mnalloc.3
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man1 man/terrace-kv.1
	mkdir -p $(DESTDIR)$(PREFIX)/lib/pkgconfig
	for library in terrace terrace_objects; do \
		sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' $$library.pc.in >$(DESTDIR)$(PREFIX)/lib/pkgconfig/$$library.pc || exit; done
	mkdir -p $(DESTDIR)$(PREFIX)/lib/systemd/system
	for unit in terrace@.service terrace-kv.service; do \
		sed 's|@PREFIX@|$(PREFIX)|' packaging/$$unit.in >$(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit || exit; done
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/udev/rules.d packaging/60-terrace.rules
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/sysctl.d packaging/60-terrace.conf
	mkdir -p $(DESTDIR)$(PREFIX)/share/doc/terrace
	@[ -s $(RELEASE)/copyright ] || $(MAKE) --no-print-directory $(RELEASE)/copyright || true
	@[ ! -s $(RELEASE)/copyright ] || install -D -m 644 $(RELEASE)/copyright $(DESTDIR)$(PREFIX)/share/doc/terrace/copyright
	@[ -s $(RELEASE)/copyright ] || echo 'terrace: install: no licence texts; python3 and cargo make them' >&2

# Licences of what is linked.
$(RELEASE)/copyright: Cargo.lock
	python3 scripts/licences.py >$@.new && mv $@.new $@

uninstall:
	rm -rf $(DESTDIR)$(PREFIX)/lib/terrace $(DESTDIR)$(PREFIX)/share/doc/terrace
	cd $(DESTDIR)$(PREFIX) && rm -f bin/terrace bin/terrace-kv include/terrace.h include/terrace.hpp include/terrace_objects.h lib/pkgconfig/terrace.pc \
		lib/pkgconfig/terrace_objects.pc \
		lib/systemd/system/terrace@.service lib/systemd/system/terrace-kv.service lib/udev/rules.d/60-terrace.rules lib/sysctl.d/60-terrace.conf \
		share/man/man3/mnalloc.3* share/man/man1/terrace.1* share/man/man1/terrace-*.1* \
		share/bash-completion/completions/terrace.bash share/zsh/site-functions/_terrace share/fish/vendor_completions.d/terrace.fish

# Packages are made of what `install` puts into an empty directory, so that has the only list of files. They are built once more, so
# that no path of this machine is in them.
PACKAGES = $(or $(CARGO_TARGET_DIR),target)/packages
PORTABLE = $(abspath $(or $(CARGO_TARGET_DIR),target))/portable
CARGO_DIRECTORY = $(or $(CARGO_HOME),$(HOME)/.cargo)
portable:
	@scripts/setup.sh package
	driver=$$(scripts/old-libc.sh $(PORTABLE)) && CC=$$driver CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=$$driver \
		RUSTFLAGS='--remap-path-prefix=$(CARGO_DIRECTORY)=cargo --remap-path-prefix=$(CURDIR)=terrace' CARGO_TARGET_DIR=$(PORTABLE) \
		$(CARGO) build --release -p terrace-cli -p terrace-runtime -p terrace-objects -p terrace-kv

# What is built so runs in a root of Debian 11, whose C library is 2.31.
try-portable: portable
	scripts/try-portable.sh $(PORTABLE)/release

# Tests that wait for what other processes do. Those of guests have clocks of their own.
STALLED := attached daemons_are_kept children_share_the_budget processes_live_and_die programs_start_as_ever
try-stalls:
	@scripts/setup.sh test
	$(CARGO) build --release --workspace
	$(CARGO) test --release -p terrace-tests --no-run
	scripts/with-stalls.py $(CARGO) test --release -p terrace-tests --no-fail-fast $(STALLED:%=--test %)

oci: deb
	scripts/oci.sh $(PACKAGES)/terrace_$(VERSION)_*.deb $(PACKAGES)

deb rpm tarball: portable
	@scripts/setup.sh package
	scripts/package.sh $@ $(PORTABLE)/release $(PACKAGES)

# Pages of documentation that are made from the program; a test compares them.
reference:
	$(CARGO) run --release -q -p terrace-cli -- generate --reference docs/reference

clean:
	rm -rf .demo
	$(CARGO) clean
