#!/usr/bin/env bash
# Installs the packages of packages.txt that are missing; then, with pip, Arrow's C++ library as pyarrow has it and,
# where there is a CUDA compiler, the headers of cuDNN's frontend. It ends with what had to be left out, and what that
# costs. With nothing missing it does nothing and needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."

left_out=()

install_packages() {
  local missing=() as_root=() package status
  while read -r package; do
    status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ $status == installed* ]] || missing+=("$package")
  done < <(sed -e 's/#.*//' -e 's/[[:space:]]//g' -e '/^$/d' packages.txt)
  ((${#missing[@]})) || return 0

  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
      echo "setup: these packages are missing and installing them needs root or sudo: ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  echo "setup: installing ${missing[*]}"
  local apt_get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get)
  "${apt_get[@]}" update
  "${apt_get[@]}" install --yes --no-install-recommends "${missing[@]}"
}

# from_pip FOLDER PACKAGE COST: the package alone, without what it depends on, unless its folder is there.
from_pip() {
  local reason
  [[ ! -d $1 ]] || return 0
  echo "setup: getting $2 with pip"
  if ! reason=$(python3 -m pip install --quiet --no-deps --disable-pip-version-check --root-user-action=ignore \
    --retries 1 --timeout 10 --target "$1.partial" "$2" 2>&1); then
    rm -rf "$1.partial"
    left_out+=("$2: pip could not get it ($(tail -n 1 <<<"$reason")); $3")
    return 0
  fi
  mv "$1.partial" "$1"
}

if command -v dpkg-query >/dev/null; then
  install_packages
else
  left_out+=("the packages of packages.txt: this system has no dpkg; install their equivalents, CMake names the missing")
fi

# Debian 12 has no Arrow. A pyarrow that python3 finds will do, if it brings its headers along.
pyarrow_is_installed='import importlib.util, os, sys; spec = importlib.util.find_spec("pyarrow")
sys.exit(not (spec and os.path.exists(spec.submodule_search_locations[0] + "/include/parquet/file_reader.h")))'
if ! pkg-config --exists parquet 2>/dev/null && ! python3 -c "$pyarrow_is_installed" 2>/dev/null; then
  from_pip .cache/pyarrow pyarrow "files of Parquet cannot be read"
fi
if command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]]; then
  from_pip .cache/cudnn-frontend nvidia-cudnn-frontend "attention on cards runs without cuDNN"
fi

for line in "${left_out[@]}"; do
  echo "setup: left out: $line. Run tools/setup.sh again once that works." >&2
done
