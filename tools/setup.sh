#!/usr/bin/env bash
# Installs the packages of packages.txt that are missing, Arrow's C++ library as pyarrow has it and, where there is a
# CUDA compiler, the headers of cuDNN's frontend. With nothing missing it does nothing and needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."

# Header-only and optional: without it the program is built without cuDNN's attention.
frontend=.cache/cudnn-frontend
if [[ ! -f $frontend/include/cudnn_frontend.h ]] && { command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]]; }; then
  python3 -m pip install --quiet --no-deps --disable-pip-version-check --root-user-action=ignore --target "$frontend" \
    nvidia-cudnn-frontend >/dev/null 2>&1 ||
    echo "setup: pip could not get nvidia-cudnn-frontend; attention by cuDNN is left out." >&2
fi

# Optional too: headers and libraries of Arrow, which Debian 12 has not. Without them Parquet cannot be read.
pyarrow=.cache/pyarrow
installed='import importlib.util, os, sys; spec = importlib.util.find_spec("pyarrow")
sys.exit(not (spec and os.path.exists(spec.submodule_search_locations[0] + "/include/parquet/file_reader.h")))'
if [[ ! -d $pyarrow/pyarrow ]] && ! pkg-config --exists parquet 2>/dev/null && ! python3 -c "$installed" 2>/dev/null; then
  python3 -m pip install --quiet --no-deps --disable-pip-version-check --root-user-action=ignore --retries 1 --timeout 10 \
    --target "$pyarrow" pyarrow >/dev/null 2>&1 ||
    echo "setup: pip could not get pyarrow; reading Parquet is left out." >&2
fi

if ! command -v dpkg-query >/dev/null; then
  echo "setup: this system has no dpkg; install the equivalents of packages.txt yourself (CMake names what it misses)." >&2
  exit 0
fi

missing=()
while read -r package; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed* ]] || missing+=("$package")
done < <(sed -e 's/#.*//' -e 's/[[:space:]]//g' -e '/^$/d' packages.txt)

if ((${#missing[@]} == 0)); then
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "setup: these packages are missing and installing them needs root or sudo: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "setup: installing ${missing[*]}"
apt_get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get)
"${apt_get[@]}" update
"${apt_get[@]}" install --yes --no-install-recommends "${missing[@]}"
