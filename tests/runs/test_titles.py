"""One table of what figures are called: no raw key of a file reaches a reader, and typed names stay typed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from refusals import mentions

from vlmconsole.cli.run import ending
from vlmconsole.compare.runs import COMPARED, FIGURES
from vlmconsole.gates.figures import short_answer
from vlmconsole.gates.metrics import METRICS
from vlmconsole.reports import svg
from vlmconsole.reports.learned import listed
from vlmconsole.reports.parts import Table, answer, flat
from vlmconsole.runs.conditions import Conditions
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.titles import TITLES, in_unit, title

RAW = re.compile(r"[a-z0-9]_[a-z0-9]")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("ttft_s", "TTFT, s"),
        ("all_correct", "all correct"),
        ("settle_ms", "settle, ms"),
        ("index_sha256", "index, SHA-256"),
        ("peak_bytes", "peak, MiB"),
        ("never_heard_of", "never heard of"),
        ("hardware", "hardware"),
    ],
)
def test_a_key_is_said_in_words_with_its_unit(key: str, said: str) -> None:
    assert title(key) == said
    assert mentions(title("partial"), "partial reward")


def test_every_title_is_in_words_and_each_table_says_the_same() -> None:
    assert not [one for one in TITLES.values() if RAW.search(one)]
    assert not [metric for metric in METRICS.values() if RAW.search(metric.title + metric.short)]
    assert all(METRICS[name].title == title(name) for name in ("all_correct", "partial"))
    assert not [key for key in Conditions.model_fields if RAW.search(title(key))]
    for key, said in COMPARED.items():
        assert title(key).split(", ")[0] == said
    for key, (name, unit, _) in FIGURES.items():
        assert title(key) == f"{name}, {unit}"


def test_nested_figures_are_said_in_words_and_what_a_person_named_is_left() -> None:
    told = flat(
        {
            "before": {"model_sha256": "ab", "client_concurrency": 1},
            "memory": {"peak_bytes": 3 * 1024 * 1024},
            "groups": {"my_group": {"all_correct": 0.5}},
            "settings": {"chunked_prefill_size": 512},
            "data": {"my_data": "cd"},
        }
    )
    assert told == [
        ("before · model weights, SHA-256", "ab"),
        ("before · client concurrency C", "1"),
        ("memory · peak, MiB", "3"),
        ("groups · my_group · all correct", "0.5"),
        ("settings · chunked_prefill_size", "512"),
        ("data · my_data", "cd"),
    ]
    assert flat({"max_new_tokens": 64}, raw=True) == [("max_new_tokens", "64")]
    assert in_unit("planned_bytes", "not known") == "not known"


def test_no_figure_beside_an_interval_is_cut_off_and_steps_are_whole() -> None:
    tail = "−0.1250 (−0.2031 to −0.0469)"
    drawn = svg.ranges("", [svg.Range("naming", -0.2, -0.1, -0.05, tail)], "")
    (start,) = re.findall(r'<text x="([\d.]+)"[^>]*>−0.1250', drawn)
    assert float(start) + len(tail) * 6.7 <= svg.WIDTH
    assert svg.ticks(1, 3, 7, whole=True) == [1, 2, 3] and 1.5 in svg.ticks(1, 3, 7)
    assert svg.ticks(0, 16, 7, whole=True) == [0, 5, 10, 15, 20] and 2.5 in svg.ticks(0, 16, 7)


def test_a_counting_answer_is_said_in_words_and_one_out_of_the_format_as_it_was() -> None:
    assert answer('{"red_circles": 3, "blue_squares": 2}') == "3 red, 2 blue"
    for odd in ('{"red_circles": true, "blue_squares": 2}', '{"red_circles": 1, "red_circles": 2, "blue_squares": 3}'):
        assert answer(odd) == odd and "/" not in short_answer(odd)
    assert answer(None) == "no answer"


def test_what_all_tensor_names_begin_with_is_said_once() -> None:
    names = [f"base_model.model.layers.{n}.q_proj.weight" for n in (0, 1)]
    (table,) = listed("Tensors", [{"name": name, "change_l2": 0.5} for name in names], "weights.json", 60)
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["0.q_proj.weight", "1.q_proj.weight"]
    assert table.note.endswith(" base_model.model.layers.") and mentions(table.columns[1].name, "norm", "change")
    (alone,) = listed("Tensors", [{"name": "lm_head.weight"}, {"name": "norm.weight"}], "weights.json", 60)
    assert isinstance(alone, Table) and alone.rows[0][0] == "lm_head.weight" and not alone.note


def test_that_a_job_was_stopped_is_no_partial_reward(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, kind="sweep", preset="p", spec={}, title="t", home=tmp_path)
    run.set_state("cancelled", "cancelled on request")
    run.write_json("summary.json", {"n": 3, "partial": True})
    text = ending(run)
    assert "partial reward" not in text and "until then" in text
    run.write_json("summary.json", {"partial": 0.5})
    assert "partial reward: 0.5" in ending(run) and "until then" not in ending(run)
