#!/usr/bin/env bash
# The extension's loops under the address, undefined-behaviour and thread sanitizers; needs g++ or clang++.
set -euo pipefail
cd "$(dirname "$0")"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for kind in address,undefined thread; do
  ${CXX:-g++} -std=gnu++17 -O1 -g1 -pthread -fsanitize=$kind -fno-sanitize-recover=all check.cpp -o "$folder/check"
  echo "$kind:"
  "$folder/check" "${1:-40}"
done
