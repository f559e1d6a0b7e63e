"""Pasted and dropped paths, as terminals and file managers really write them."""

from __future__ import annotations

import shlex
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmconsole.vision.paths import parse_paths

NAMES = [
    "plain.png",
    "two words.jpg",
    "Screenshot 2026-11-29 at 8.44.09\u202fPM.png",
    "no\u00a0break.webp",
    "it's.png",
    'say "hi".png',
    "back\\slash.png",
    "100% sure?.png",
    "写真 1.heic",
    "UPPER.PNG",
    "#hash & $dollar (1) [2] {3};.png",
    "café.png",
]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("my pictures")
    made = [folder / name for name in NAMES]
    for path in made:
        path.write_bytes(b"x")
    return made


def escaped(path: Path) -> str:
    return "".join(char if char.isalnum() or char in "/._-" or ord(char) > 127 else "\\" + char for char in str(path))


def in_double_quotes(path: Path) -> str:
    return '"' + "".join("\\" + char if char in '"\\$`' else char for char in str(path)) + '"'


STYLES = {
    "shell quotes": lambda path: shlex.quote(str(path)),
    "backslashes": escaped,
    "double quotes": in_double_quotes,
    "file URL": lambda path: "file://" + quote(str(path)),
    "file URL with a host": lambda path: "file://laptop.local" + quote(str(path)),
    "file URL, one slash": lambda path: "file:" + quote(str(path)),
}


@given(
    picks=st.lists(st.tuples(st.integers(0, len(NAMES) - 1), st.sampled_from(sorted(STYLES))), min_size=1, max_size=6),
    between=st.sampled_from([" ", "\n", "\r\n", "  ", "\t", " \n"]),
    around=st.sampled_from(["", " ", "\n"]),
)
def test_every_way_of_writing_several_paths(
    pictures: list[Path], picks: list[tuple[int, str]], between: str, around: str
) -> None:
    text = around + between.join(STYLES[style](pictures[at]) for at, style in picks) + around
    pasted = parse_paths(text)
    assert pasted.paths == tuple(pictures[at] for at, _ in picks)
    assert (pasted.missing, pasted.text) == ((), "")


@pytest.mark.parametrize("name", NAMES)
def test_a_bare_path_with_nothing_escaped(pictures: list[Path], name: str) -> None:
    path = pictures[0].parent / name
    assert parse_paths(str(path)).paths == (path,)
    assert parse_paths(f"{path}\n{path}\n").paths == (path, path)


@given(st.text(max_size=200) | st.text("/~'\"\\ \n.pngfile:#C\x00", max_size=60))
def test_any_text_is_survived_and_kept_when_it_holds_no_path(text: str) -> None:
    pasted = parse_paths(text)
    if not (pasted.paths or pasted.missing):
        assert pasted.text == text


@pytest.mark.parametrize(
    "text",
    [
        "What is on the left?",
        "don't look at plain.png, it's old",
        "see /etc/passwd and /usr/bin/env",
        "Traceback: File /usr/lib/python3.11/x.py, line 3",
        r"C:\Users\me\cat.png",
        r"\\server\share\cat.png",
        "file:///C:/Users/me/cat.png",
        "https://example.org/cat.png",
        "1/2 and 3/4",
        "/",
        "~",
        "'unbalanced",
        "",
        "  \n ",
        "x" * 300_000 + " /a.png",
    ],
)
def test_prose_and_foreign_paths_stay_text(text: str) -> None:
    assert parse_paths(text) == type(parse_paths(""))((), (), text)


def test_paths_amid_words(pictures: list[Path]) -> None:
    pasted = parse_paths(f"compare {pictures[0]} with /no/such/b.jpg please\nand be brief")
    assert pasted.paths == (pictures[0],)
    assert pasted.missing == (Path("/no/such/b.jpg"),)
    assert pasted.text == "compare with please\nand be brief"


def test_a_laptops_paths_are_missing_as_written() -> None:
    assert parse_paths("~/Desktop/cat.png").missing == (Path("~/Desktop/cat.png"),)
    bare = "/Users/me/Desktop/Screenshot 2026-11-29 at 8.44.09\u202fPM.png"
    assert parse_paths(bare).missing == (Path(bare),)
    assert parse_paths(escaped(Path(bare))).missing == (Path(bare),)
    assert parse_paths("/Users/me/a.png /Users/me/b.png").missing == (Path("/Users/me/a.png"), Path("/Users/me/b.png"))


def test_relative_names_and_home(pictures: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pictures[0].parent
    assert parse_paths("plain.png 'two words.jpg'", folder=folder).paths == (folder / NAMES[0], folder / NAMES[1])
    assert parse_paths("two words.jpg", folder=folder).paths == (folder / NAMES[1],)
    assert parse_paths("plain.png is odd", folder=folder).text == "plain.png is odd"
    monkeypatch.setenv("HOME", str(folder))
    assert parse_paths("~/plain.png").paths == (folder / "plain.png",)
    assert parse_paths("~nosuchuser/plain.png").missing == (Path("~nosuchuser/plain.png"),)


def test_a_name_typed_with_other_spaces_or_accents_is_found(pictures: list[Path]) -> None:
    folder = pictures[0].parent
    assert parse_paths(str(folder / "Screenshot 2026-11-29 at 8.44.09 PM.png")).paths == (pictures[2],)
    assert parse_paths(str(folder / "cafe\u0301.png")).paths == (folder / "café.png",)


def test_a_single_file_without_a_suffix(tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"x")
    assert parse_paths(str(tmp_path / "picture")).paths == (tmp_path / "picture",)
    assert parse_paths(str(tmp_path)).text == str(tmp_path)
