"""Message and hint of an error in one line."""

from pathlib import Path

import httpx
import pytest
from refusals import mentions

from vlmconsole.engines.http import connection_error
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.errors import LabError
from vlmconsole.jobs import preflight
from vlmconsole.runs.places import Places


@pytest.mark.parametrize(
    ("message", "hint", "told"),
    [
        ("It broke.", "", "It broke."),
        ("It broke.", "Mend it.", "It broke. Mend it."),
        ("no job 7", "`jobs list` shows them", "no job 7; `jobs list` shows them"),
        ("../data is none..", "Look.", "../data is none.. Look."),
    ],
)
def test_message_and_hint_make_sentences(message: str, hint: str, told: str) -> None:
    assert LabError(message, hint).full_message == told


def test_a_missing_adapter_is_told_in_whole_sentences_and_its_name_stays(tmp_path: Path) -> None:
    (said,) = preflight.adapter("../no..where", Places(tmp_path).ensure(), alone=True)
    assert "../no..where" in said and said.endswith(f". {preflight.AFTER}") and "none yet; " in said


@pytest.mark.parametrize(
    "error",
    [
        httpx.RemoteProtocolError("peer closed connection without sending complete message body"),
        httpx.RemoteProtocolError("Server disconnected without sending a response."),
        httpx.ReadError(""),
    ],
)
def test_a_server_that_ends_in_mid_answer_is_told_in_plain_words(error: Exception) -> None:
    said = connection_error(ServerProfile(name="box", engine="openai", base_url="http://127.0.0.1:9"), error)
    assert said.startswith("http://127.0.0.1:9") and "closed the connection" in said
    assert not mentions(said, "peer") and not mentions(said, "disconnected")
