#!/usr/bin/env bash
# Installs the packages of packages.txt that are missing. With nothing missing it does nothing and needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."

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
