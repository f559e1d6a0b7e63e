"""The counter of the house (`tests/tools/house.py`) over a checkout of five small files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

TOOL = Path(__file__).resolve().parents[1] / "tools" / "house.py"
FILES = {
    "vlmconsole/__init__.py": "",
    "vlmconsole/engines/mlx.py": "def said(one: int) -> bool:\n    return one == 'mlx'\n",
    "vlmconsole/runs/folder.py": """
        from typing import TYPE_CHECKING
        from vlmconsole.screens import table
        if TYPE_CHECKING:
            from vlmconsole.engines import mlx

        class Row:
            class Inner: ...

        def local(engine: str) -> bool:
            from vlmconsole.runs import places
            return engine == "mlx"
        """,
    "vlmconsole/runs/places.py": "import vlmconsole.runs.folder\n",
    "screens/table.py": """
        from textual.widget import Widget

        class Row(Widget): ...
        class Table(Row): ...
        class Inner: ...
        MESSAGE = f"the table has no {1} rows at all"
        """,
    "tests/lab/rooms.py": "ROOMS = {'runs': 'run folders', 'engines': 'models served', 'screens': 'what is seen'}\n",
    "tests/text/test_words.py": '''
        WANTED = "has no rows to show"

        def test_matched(page):
            """A docstring is no sentence that counts."""
            assert WANTED in page.text

        def test_raised(pytest):
            with pytest.raises(ValueError, match="rows at all times count"):
                pass

        def test_put_in(ask):
            assert ask("how many red circles are there") == 3

        def test_echoed(field):
            field.insert("what was typed by me")
            assert field.text == "what was typed by me"

        def test_without(page):
            assert page.code == "port-taken"
        ''',
}


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("checkout")
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    command = [sys.executable, str(TOOL), str(root), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


def test_files_and_rooms(figures: Any) -> None:
    assert figures["files"] == {"product": 5, "tests": 2}
    assert figures["rooms"] == {".": 1, "engines": 1, "runs": 2, "screens": 1}


def test_classes(figures: Any) -> None:
    assert figures["classes_of_same_name"] == {"Row": ["runs.folder", "screens.table"]}
    assert set(figures["classes_of_same_name_with_inner"]) == {"Row", "Inner"}
    assert figures["chains_of_three_and_more"] == [] and figures["longest_chain"] == 2


def test_imports(figures: Any) -> None:
    assert figures["circles"] == [["runs.folder", "runs.places"]], "lazy ones count, for types none"
    assert figures["upward_imports"] == ["runs.folder -> screens.table"]


def test_names(figures: Any) -> None:
    assert figures["words"]["one"] == {"product": 2, "with_tests": 2}
    assert figures["words"]["said"]["product"] == 1
    assert figures["engine_names_compared_at"] == ["runs.folder:12"], "not inside engines/"


def test_sentences(figures: Any) -> None:
    assert figures["tests"] == 5
    assert figures["tests_with_sentence"] == 2, "a name is followed; what was put in, alone or echoed, is no output"
    assert figures["tests_with_any_sentence"] == 4
