#!/bin/sh
# Strict types of what ships. mypy cannot follow the folder mapping of an editable install,
# so the tree is installed as a plain copy into build/types and checked there.
set -e
BIN=$(cd "$1" && pwd)
ROOT=$(pwd)
rm -rf build/types build/lib
"$BIN/python" -m pip install -q --no-deps --target build/types .
cd build/types
MYPYPATH=. exec "$BIN/mypy" --config-file "$ROOT/pyproject.toml" --explicit-package-bases -p vlmconsole
