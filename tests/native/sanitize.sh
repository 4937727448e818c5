#!/usr/bin/env bash
# The extension's loops under the address, undefined-behaviour and thread sanitizers, both at once; needs g++ or clang++.
set -euo pipefail
cd "$(dirname "$0")"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

check() { # sanitizers, level of optimisation, trials
  ${CXX:-g++} -std=gnu++17 "-O$2" -g1 -pthread -fsanitize="$1" -fno-sanitize-recover=all check.cpp -o "$folder/$1"
  "$folder/$1" "$3" | sed "s/^/$1: /"
}
# optimised, the checks of undefined behaviour take three minutes to compile
check address,undefined 0 "${1:-40}" &
first=$!
check thread 1 "$((${1:-40} / 2))"
wait $first
