# The short commands. CMake does the work; see CMakePresets.json for other builds (debug, sanitizers, CUDA).
#   make test CMAKE_ARGS=-DREDLINE_WERROR=ON    passes options to the configure step

BUILD        := build
JOBS         ?= $(shell nproc)
CMAKE_ARGS   ?=
CLANG_FORMAT ?= clang-format-14
DEMO_RUN     := runs/demo
PREFIX       ?= /usr/local
DIST         := dist
SOURCES       = $(shell find src tests bench fuzz -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null)

# Reference outputs that some tests compare with, when they lie beside the checkout.
ifneq ($(wildcard ../shared/oracles),)
export REDLINE_ORACLES ?= $(abspath ../shared/oracles)
endif

.DEFAULT_GOAL := help
.PHONY: help demo build test install deb release wheel format check clean setup configure

help:  ## list these commands
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: configure  ## build, train a small model, evaluate it and sample from it; a second run only shows the result
	cmake --build $(BUILD) --parallel $(JOBS) --target redline
	@cat $(BUILD)/left_out.txt
	$(BUILD)/redline train --preset quick --out $(DEMO_RUN) --resume
	$(BUILD)/redline eval --checkpoint $(DEMO_RUN) --data ping
	$(BUILD)/redline sample --checkpoint $(DEMO_RUN) --prompt "<begin><source>10." --temperature 0.5
	@echo "The run is in $(DEMO_RUN)/: config.toml, metrics.jsonl, checkpoints/."

build: configure  ## build everything into build/
	cmake --build $(BUILD) --parallel $(JOBS)
	@cat $(BUILD)/left_out.txt

test: build  ## build everything and run all tests
	ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -j $(JOBS)

install: configure  ## install program, presets, manual page and completions under PREFIX (/usr/local), below DESTDIR
	cmake --build $(BUILD) --parallel $(JOBS) --target redline redline_pages
	cmake --install $(BUILD) --prefix $(PREFIX)

deb: setup  ## a Debian package in dist/
	cmake --preset deb $(CMAKE_ARGS)
	cmake --build build-deb --parallel $(JOBS) --target redline redline_pages
	tools/package.py deb --build build-deb --out $(DIST)

release: setup  ## an archive in dist/ that brings its libraries along
	cmake --preset archive $(CMAKE_ARGS)
	cmake --build build-archive --parallel $(JOBS) --target redline redline_pages
	tools/package.py archive --build build-archive --out $(DIST)

wheel: setup  ## a Python wheel in dist/: pip install dist/redline-*.whl
	cmake --preset wheel $(CMAKE_ARGS)
	cmake --build build-wheel --parallel $(JOBS) --target redline redline_pages
	tools/package.py wheel --build build-wheel --out $(DIST)

format:  ## format the sources in place
	@echo "$(CLANG_FORMAT) -i, $(words $(SOURCES)) files"
	@$(CLANG_FORMAT) -i $(SOURCES)

check:  ## check the floors, lengths of lines, links of the docs, tables of the benchmarks and formatting
	tools/check_floors.py
	tools/check_lines.py
	tools/check_links.py
	python3 -B bench/make_tables.py --check
	@echo "$(CLANG_FORMAT), $(words $(SOURCES)) files"
	@$(CLANG_FORMAT) --dry-run --Werror $(SOURCES)

clean:  ## remove the build folders; runs are kept
	rm -rf build build-debug build-single build-asan build-tsan build-cuda build-deb build-archive build-wheel $(DIST)

setup:  ## install the missing packages of packages.txt
	@tools/setup.sh

# Once there is a build folder, ninja configures again by itself; options given here ask for it.
configure: setup
	@if [ ! -f $(BUILD)/build.ninja ] || [ -n "$(strip $(CMAKE_ARGS))" ]; then cmake --preset release $(CMAKE_ARGS); fi
