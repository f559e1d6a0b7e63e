"""Examples: what is written is read again, and drawn scenes are examples too."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.refusals import refused
from vlmconsole.counting.questions import few_things
from vlmconsole.data.example import Example, ExampleTurn, read_examples, write_examples
from vlmconsole.data.rows import Row, write_rows

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
TRUTHS = st.one_of(
    TEXT, st.integers(-(10**9), 10**9), st.lists(TEXT), st.dictionaries(TEXT, st.integers(0, 9)), st.none()
)
TURNS = (ExampleTurn("user", "<image>What is it?"), ExampleTurn("assistant", "a circle"))


@given(TRUTHS, TEXT, st.dictionaries(TEXT, st.one_of(TEXT, st.integers(0, 9), st.none())))
def test_what_is_written_is_read_again(tmp_path_factory, truth, group, metadata):
    path = tmp_path_factory.mktemp("split") / "test.parquet"
    example = Example("a", (b"\x89PNG",), TURNS, truth, "exact", {"case": True}, group, "test", 3, "own", metadata)
    assert write_examples(path, [example]) == 1
    assert list(read_examples(path)) == [example]


def test_a_drawn_scene_is_an_example(tmp_path: Path):
    png = few_things("sample:30").png()
    write_rows(
        tmp_path / "test.parquet", [Row("u", png, "How many?", '{"a": 1}', "vlmconsole/counting", "c", "test", 7)]
    )
    (example,) = read_examples(tmp_path / "test.parquet")
    assert (example.id, example.images, example.question, example.scorer) == ("u", (png,), "How many?", "counting")
    assert example.truth == example.target == '{"a": 1}'
    assert example.system is None


def test_each_question_is_asked_with_what_stands_before_it():
    system, more = ExampleTurn("system", "Be short."), ExampleTurn("user", "And <image>?")
    example = Example("x", (b"1", b"2"), (system, *TURNS, more, ExampleTurn("assistant", "two")), ["2", "two"], "exact")
    first, second = example.questions()
    assert (first.id, first.images, first.truth, len(first.turns)) == ("x", (b"1",), "a circle", 3)
    assert (second.id, second.images, second.truth, second.question) == ("x#2", (b"1", b"2"), ["2", "two"], "And ?")
    assert first.system == second.system == "Be short."


@pytest.mark.parametrize(
    ("images", "turns", "code"),
    [
        ((), TURNS, "image-tags"),
        ((b"1", b"2"), TURNS, "image-tags"),
        ((), (), "turns-invalid"),
        ((b"1",), (TURNS[0], TURNS[0]), "turns-invalid"),
        ((b"1",), (ExampleTurn("assistant", "<image>"),), "turns-invalid"),
    ],
)
def test_misfits_are_refused(images, turns, code):
    with refused(code):
        Example("x", images, turns).check()


@pytest.mark.parametrize("column", ["turns", "truth", "options", "metadata", "images"])
def test_a_damaged_row_is_named(tmp_path: Path, column):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "dev.parquet"
    write_examples(path, [Example("a", (b"1",), TURNS)])
    table = pq.read_table(path)
    damaged = pa.nulls(1, table.schema.field(column).type)
    pq.write_table(table.set_column(table.schema.get_field_index(column), table.schema.field(column), damaged), path)
    with refused("row-invalid", "dev.parquet row 1"):
        list(read_examples(path))
