"""Folders of this checkout that tests read: the project, its tests, their data and their helpers."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
DATA = TESTS / "data"
HELPERS = TESTS / "lab"
FAULTS = TESTS / "tools" / "faults"
#: On the path of the tests: a test may use what another room's test module, or a tool, defines.
ROOMS = sorted({path.parent for path in TESTS.rglob("test_*.py")} | {TESTS / "tools"})
