"""`tokens`, `kv` and `score` as scripts use them: one JSON value, exit codes, order kept."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from folders import DATA
from PIL import Image
from refusals import mentions

from vlmconsole.cli import main
from vlmconsole.scoring.scorer import Score, Scorer, ScorerOptions


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main(["--home", str(tmp_path / "home"), *words])
        out = capsys.readouterr()
        return int(stopped.value.code or 0), out.out, out.err

    return call


def test_tokens_of_a_size(cli: Any) -> None:
    code, out, err = cli("tokens", "448x336", "--json")
    value = json.loads(out)
    assert (code, err) == (0, "")
    assert (value["resized"], value["image_grid_thw"], value["visual_tokens"]) == ([448, 336], [1, 24, 32], 192)
    code, out, _ = cli("tokens", "448×336")
    assert code == 0 and mentions(out, "16×12 merged", "192 image tokens")
    assert "resized to 1008×700" in cli("tokens", "1000x700")[1]


def test_tokens_of_a_picture_and_a_model(cli: Any, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "photo [red].jpg"
    Image.new("RGB", (448, 336)).save(path, exif=exif)
    value = json.loads(cli("tokens", str(path), "--json")[1])
    assert value["size"] == [336, 448] and value["image_grid_thw"] == [1, 32, 24]
    (change,) = value["picture"]["changes"]
    assert mentions(change, "upright", "EXIF", "6")
    assert "photo [red].jpg: turned upright" in cli("tokens", str(path))[1], "a name is text, never markup"
    (tmp_path / "preprocessor_config.json").write_text('{"min_pixels": 3136, "max_pixels": 50176}')
    value = json.loads(cli("tokens", "448x448", "--model", str(tmp_path), "--json")[1])
    assert value["visual_tokens"] == 64 and value["settings"]["max_pixels"] == 50176


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("tokens", "0x5"), 2, "no pixels"),
        (("tokens", "1x30000"), 1, "200:1"),
        (("tokens", "no-such.png"), 1, "does not exist"),
        (("tokens", "448x336", "--model", "no-such-folder"), 1, "no-such-folder"),
        (("kv", "--layers", "3"), 2, "Missing --kv-heads, --head-dim, --bytes"),
        (("kv", "--layers", "x"), 2, "valid integer"),
        (("kv", "--model", "no-such-folder"), 1, "no-such-folder"),
        (("kv", "--model", "m", "--layers", "3"), 2, "--model already says"),
        (("score", "counting", "no-such.jsonl"), 2, "no-such.jsonl"),
        (("score", "nonsense", "x"), 2, "nonsense"),
    ],
)
def test_failures_say_one_thing_and_give_their_code(cli: Any, words: tuple[str, ...], code: int, said: str) -> None:
    got, out, err = cli(*words, "--json")
    assert got == code
    assert said in json.loads(out)["error"]["message"] and err.startswith("error: ")


def test_kv_from_numbers_and_from_a_model(cli: Any, tmp_path: Path) -> None:
    numbers = ("--layers", "36", "--kv-heads", "2", "--head-dim", "128", "--bytes", "2", "--tokens", "4096")
    value = json.loads(cli("kv", *numbers, "--json")[1])
    assert (value["bytes_per_token"], value["bytes"]) == (36 * 1024, 144 * 2**20)
    assert "weights" in value["excludes"]
    _, out, _ = cli("kv", *numbers, "--sequences", "4")
    assert "36 KiB a token" in out and "4 sequences = 576 MiB" in out and mentions(out, "not", "weights")
    (tmp_path / "config.json").write_text(
        json.dumps({"text_config": {"num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2}})
    )
    assert "has no hidden_size" in cli("kv", "--model", str(tmp_path))[2]
    config = {"num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2, "hidden_size": 2048}
    (tmp_path / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}))
    value = json.loads(cli("kv", "--model", str(tmp_path), "--json")[1])
    assert (value["bytes_per_token"], value["tokens"]) == (36 * 1024, 4096)
    assert json.loads(cli("kv", "--model", str(tmp_path), "--bytes", "1", "--json")[1])["bytes_per_token"] == 18 * 1024


def lines(path: Path, *values: Any) -> str:
    path.write_text("\n".join(v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values) + "\n")
    return str(path)


def test_counting_scores_keep_order(cli: Any, tmp_path: Path) -> None:
    truth = {"red_circles": 3, "blue_squares": 2}
    file = lines(
        tmp_path / "a.jsonl",
        {"answer": json.dumps(truth), "truth": truth},
        "",
        {"answer": '{"red_circles": 3, "blue_squares": 9}', "truth": json.dumps(truth), "id": 7},
        {"answer": json.dumps(truth) + "\u2028!", "truth": truth},
        {"answer": None, "truth": truth},
    )
    code, out, err = cli("score", "counting", file, "--json")
    rows = json.loads(out)["rows"]
    assert (code, err) == (0, "")
    assert [row["reward"] for row in rows] == [1.0, 0.5, 0.0, 0.0]
    assert [row["valid"] for row in rows] == [True, True, False, False]
    assert [row["all_correct"] for row in rows] == [True, False, False, False]
    assert [row["partial"] for row in rows] == [1.0, 0.5, 0.0, 0.0]
    assert mentions(cli("score", "counting", file)[1], "mean reward", "0.3750", "4 lines")


def test_a_bad_line_keeps_its_place_and_fails_the_command(cli: Any, tmp_path: Path) -> None:
    truth = {"red_circles": 3, "blue_squares": 2}
    good = {"answer": json.dumps(truth), "truth": truth}
    file = lines(tmp_path / "a.jsonl", good, "not json", "[1]", {"answer": "x"}, {"answer": "x", "truth": "3/2"}, good)
    code, out, err = cli("score", "counting", file, "--json")
    rows = json.loads(out)["rows"]
    assert code == 1 and mentions(err, "4 of 6", "lines")
    assert ["error" in row for row in rows] == [False, True, True, True, True, False]
    assert rows[1]["error"] == "line 2: not JSON" and "truth" in rows[3]["error"] and "two counts" in rows[4]["error"]


def test_a_file_without_lines_says_so(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    code, out, _ = cli("score", "counting", str(tmp_path / "empty.jsonl"))
    assert code == 0 and mentions(out, "empty.jsonl", "no line")
    assert json.loads(cli("score", "counting", str(tmp_path / "empty.jsonl"), "--json")[1])["rows"] == []


def test_textvqa_golden_vectors_through_the_command(cli: Any, tmp_path: Path) -> None:
    golden = json.loads((DATA / "textvqa.json").read_text(encoding="utf-8"))
    scored = [{"prediction": v["prediction"], "answers": v["answers"]} for v in golden["score"]]
    raw = [{"raw": v["raw"]} for v in golden["normalise"]]
    code, out, _ = cli("score", "textvqa", lines(tmp_path / "t.jsonl", *scored, *raw), "--json")
    rows = json.loads(out)["rows"]
    assert code == 0 and len(rows) == len(scored) + len(raw)
    for row, vector in zip(rows, golden["score"], strict=False):
        assert row["score"] == (None if vector["score"] is None else pytest.approx(vector["score"], abs=1e-12))
        assert (row["score"] is None) == ("reason" in row)
    assert [row["normalised"] for row in rows[len(scored) :]] == [v["normalised"] for v in golden["normalise"]]


def test_textvqa_lines_that_cannot_be_scored(cli: Any, tmp_path: Path) -> None:
    file = lines(
        tmp_path / "t.jsonl", {"answers": ["x"] * 10}, {"prediction": "x"}, {"prediction": "x", "answers": [1] * 10}
    )
    code, out, _ = cli("score", "textvqa", file, "--json")
    assert code == 1 and all("error" in row for row in json.loads(out)["rows"])


def test_standard_input(monkeypatch: pytest.MonkeyPatch, cli: Any) -> None:
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(b'\xef\xbb\xbf{"raw": "The End"}\r\n'), encoding="utf-8")
    )
    assert json.loads(cli("score", "textvqa", "-", "--json")[1])["rows"] == [{"score": None, "normalised": "end"}]


def test_counters_start_without_the_picture_and_statistics_libraries() -> None:
    code = (
        "import sys\nfrom vlmconsole.cli import main\n"
        "try: main(['tokens', '448x336', '--json'])\nexcept SystemExit: pass\n"
        "print([name for name in ('PIL', 'scipy', 'numpy', 'httpx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_scored_rows_keep_their_ids_and_one_given_twice_is_told(cli: Any, tmp_path: Path) -> None:
    truth = {"red_circles": 1, "blue_squares": 2}
    right = {"answer": json.dumps(truth), "truth": truth}
    file = lines(tmp_path / "ids.jsonl", {**right, "id": "q1"}, right, {**right, "id": 7}, {**right, "id": "q1"})
    code, out, err = cli("score", "counting", file, "--json")
    assert [row.get("id") for row in json.loads(out)["rows"]] == ["q1", None, 7, "q1"]
    assert code == 0 and "q1" in err


def test_every_scorer_is_a_command(cli: Any, tmp_path: Path) -> None:
    choices = {"A": "circle", "B": "square"}
    cases = [
        ("choice", (), {"prediction": "(B)", "truth": "B", "options": choices}, {"score": 1.0, "choice": "B"}),
        ("choice", (), {"prediction": "?", "truth": "B", "choices": choices}, {"valid": False, "choice": None}),
        ("cer", (), {"prediction": "abcd", "truth": "abc"}, {"error": pytest.approx(1 / 3)}),
        ("boxes", (), {"prediction": [0, 0, 10, 10], "truth": [0, 0, 10, 5]}, {"iou": 0.5, "correct": True}),
        ("boxes", ("threshold=0.6",), {"prediction": [0, 0, 10, 10], "truth": [0, 0, 10, 5]}, {"correct": False}),
        ("number", ("tolerance=0.05",), {"prediction": "10.5", "truth": 10}, {"correct": True, "reason": ""}),
        ("vqa", (), {"prediction": "two", "answers": ["2", "two"]}, {"score": 1.0}),
        ("json", ("fields.a.scorer=number",), {"prediction": '{"a": "1"}', "truth": {"a": 1}}, {"score": 1.0}),
    ]
    for scorer, sets, line, wanted in cases:
        words = [word for item in sets for word in ("--set", item)]
        code, out, err = cli("score", scorer, lines(tmp_path / "a.jsonl", line), *words, "--json")
        value = json.loads(out)
        assert (code, err, value["scorer"]) == (0, "", f"{scorer}/1")
        assert {key: value["rows"][0][key] for key in wanted} == wanted
        assert {"score", "correct", "valid", "reason"} <= value["rows"][0].keys()
        assert value["mean"] == value["rows"][0]["score"]


def test_a_function_of_ones_own_is_a_command_too(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(prediction, truth):\n    return len(prediction) / truth\n")
    file = lines(tmp_path / "a.jsonl", {"prediction": "ab", "truth": 4}, {"prediction": "ab", "truth": 0})
    code, out, _ = cli("score", f"python:{tmp_path}/mine.py:score", file, "--json")
    rows = json.loads(out)["rows"]
    assert code == 0 and rows[0]["score"] == 0.5 and "ZeroDivisionError" in rows[1]["reason"]


class ReversingScorer(Scorer[ScorerOptions]):
    """A scorer of another package, with faults of its own."""

    name, version, summary, truth_form, Options = "reversing", "1", "", "", ScorerOptions

    def _score(self, prediction: str, truth: Any, options: ScorerOptions) -> Score:
        if prediction == "raise":
            raise KeyError("\x1b[31mred")
        odd: dict[str, Any] = {"object": object(), "nothing": None, "surrogate": "\udc80", "figure": float("nan")}
        value: Any = {"text": "1", "nan": float("nan")}.get(prediction, 1.0)
        return Score(value, True, details={"seen": odd.get(prediction, 1)})


def test_what_a_scorer_does_wrong_fails_its_row_alone(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vlmconsole.scoring.registry.find_scorer", lambda _: ReversingScorer())
    answers = ["fine", "raise", "object", "text", "nan", "figure", "surrogate", "fine"]
    rows = [{"prediction": answer, "truth": "x", "id": answer} for answer in answers]
    code, out, err = cli("score", "reversing", lines(tmp_path / "a.jsonl", *rows), "--json")
    value = json.loads(out)
    assert [row["id"] for row in value["rows"]] == answers and code == 1
    failed = [row["id"] for row in value["rows"] if "error" in row]
    assert failed == ["raise", "object", "text", "nan"] and (value["n"], value["mean"]) == (4, 1.0)
    assert mentions(value["rows"][1]["error"], "line 2", "reversing/1", "KeyError") and mentions(err, "4 of 8")
    code, out, err = cli("score", "reversing", lines(tmp_path / "a.jsonl", *rows))
    assert code == 1 and "\x1b" not in out + err


@pytest.mark.parametrize(("answers", "status"), [(["ab", "cd"], 1), (["ab", "1"], 0), (["1", "2"], 0)])
def test_a_function_that_failed_is_told_and_fails_the_command_where_it_always_did(
    cli: Any, tmp_path: Path, answers: list[str], status: int
) -> None:
    (tmp_path / "mine.py").write_text("def score(prediction, truth):\n    return int(prediction) / 2\n")
    file = lines(tmp_path / "a.jsonl", *({"prediction": answer, "truth": "x"} for answer in answers))
    code, out, err = cli("score", f"python:{tmp_path}/mine.py:score", file, "--json")
    failed = [row.get("failed", False) for row in json.loads(out)["rows"]]
    assert code == status and failed == [not answer.isdigit() for answer in answers]
    if any(failed):
        assert mentions(err, f"{sum(failed)} of 2", "line 1", "ValueError")
    else:
        assert err == ""


def test_the_row_of_an_answer_that_is_off_shows_its_score_too(cli: Any, tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", {"prediction": "3", "truth": 1})
    assert mentions(cli("score", "number", file)[1], "score 0.0", "error 2.0")


@pytest.mark.parametrize(
    ("words", "code"),
    [(("near=1",), "options-invalid"), (("tolerance",), "option-invalid"), (("tolerance=a",), "options-invalid")],
)
def test_a_wrong_option_is_bad_usage(cli: Any, tmp_path: Path, words: tuple[str, ...], code: str) -> None:
    file = lines(tmp_path / "a.jsonl", {"prediction": "1", "truth": 1})
    status, out, _ = cli("score", "number", file, *[part for word in words for part in ("--set", word)], "--json")
    assert status == 2 and json.loads(out)["error"]["code"] == code


def test_the_scorers_are_listed_with_options_and_examples(cli: Any) -> None:
    listed = json.loads(cli("scorers", "--json")[1])["scorers"]
    assert {"exact", "number", "anls", "boxes", "counting", "textvqa"} <= {scorer["name"] for scorer in listed}
    assert all(
        (scorer["examples"] or scorer["name"] == "judge") and scorer["summary"] and scorer["truth"] for scorer in listed
    )
    assert mentions(cli("scorers", "number")[1], "tolerance", "relative", "percent")
    assert cli("scorers", "guess", "--json")[0] == 2
