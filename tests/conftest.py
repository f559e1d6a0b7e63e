"""Shared by the tests: helper modules that lie beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `--import-mode=importlib` leaves the folder out
