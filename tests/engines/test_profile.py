import json
import shlex
from pathlib import Path

import pytest
from refusals import refused

from vlmconsole.engines.launch_lines import flags_of
from vlmconsole.engines.profile import (
    ProfileError,
    ServerProfile,
    load_profiles,
    make_profile,
    read_key_file,
    redact,
    save_profile,
)

GOOD = {"name": "box", "engine": "openai", "base_url": "http://127.0.0.1:8000"}
LAB_LINE = (
    "python -m sglang.launch_server --model-path ./models/Qwen2.5-VL-3B-Instruct --host 127.0.0.1 --port 30000"
    " --dtype bfloat16 --context-length 4096 --tp-size 1 --max-running-requests 4 --chunked-prefill-size 1024"
    " --mem-fraction-static 0.55 --attention-backend triton --mm-attention-backend sdpa --enable-metrics"
    " --enable-cache-report"
)


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.toml").write_text(text)


def test_presets_load_and_the_lab_launch_line_is_exact() -> None:
    profiles = load_profiles(None)
    assert {"demo", "mlx-local", "sglang-remote", "openai", "vllm"} <= set(profiles)
    launch = profiles["sglang-remote"].launch
    assert launch is not None and list(launch.argv) == shlex.split(LAB_LINE)
    assert flags_of(launch.argv)["mem-fraction-static"] == "0.55"
    assert flags_of(launch.argv)["enable-metrics"] == "true"


def test_the_bundled_model_is_found_with_its_picture_settings() -> None:
    demo = load_profiles(None)["demo"]
    folder, settings = demo.model_dir(), demo.processor_settings()
    assert folder is not None and (folder / "config.json").is_file()
    assert settings is not None and settings.max_pixels == 50176


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("engine", "tgi", "mlx, openai, sglang, vllm"),
        ("base_url", "ftp://x", "http://HOST"),
        ("base_url", "http://user:pw@host", "password"),
        ("base_url", "http://h?x=1", "'?'"),
        ("base_url", "http://h:99999", "not a URL"),
        ("ssh_host", "-oProxyCommand=evil", "no leading '-'"),
        ("ssh_host", "a b", "ssh alias"),
        ("ssh_host", "user@-x", "ssh alias"),
        ("api_key_env", "sk-live-123456", "environment variable"),
        ("running_limit", 0, "1"),
        ("name", "../x", "small letters"),
        ("colour", "red", "(keys: name"),
        ("launch", {"shell": "x"}, "(keys: argv"),
    ],
)
def test_a_bad_value_is_refused_by_key_and_not_repeated(key: str, value: object, said: str) -> None:
    with pytest.raises(ProfileError) as caught:
        make_profile({**GOOD, key: value}, "box.toml")
    message = str(caught.value)
    assert caught.value.code == "setting-invalid" and f"“{key}" in message and said in message
    assert "sk-live-123456" not in message and "pw" not in message.replace("password", "")


@pytest.mark.parametrize("host", ["gpu-box", "me@10.0.0.7", "box.example.org:2222", "user_1@h"])
def test_sane_ssh_hosts_pass(host: str) -> None:
    assert make_profile({**GOOD, "ssh_host": host}).ssh_host == host


def test_a_users_file_changes_single_keys_of_a_preset_and_adds_profiles(tmp_path: Path) -> None:
    write(tmp_path, "sglang-remote", 'running_limit = 2\n[launch]\nfolder = "/srv"\n')
    write(tmp_path, "mine", 'engine = "vllm"\nbase_url = "https://example.org/v1"\n')
    profiles = load_profiles(tmp_path)
    changed = profiles["sglang-remote"]
    assert changed.running_limit == 2 and changed.context == 4096
    assert changed.launch is not None and changed.launch.folder == "/srv" and len(changed.launch.argv) > 20
    assert profiles["mine"].engine == "vllm"


def test_a_model_of_ones_own_needs_no_more_than_its_folder(tmp_path: Path) -> None:
    own = 'engine = "mlx"\nmodel = "~/models/own"\n'
    for name in ("own", "mlx-local"):
        (tmp_path / f"{name}.toml").write_text(own)
    (tmp_path / "there.toml").write_text(own + 'base_url = "http://127.0.0.1:9"\n')
    profiles = load_profiles(tmp_path)
    assert profiles["own"].launch is not None and profiles["there"].launch is None
    laid = profiles["mlx-local"]
    assert (laid.title, laid.precision) == ("", "")
    assert laid.running_limit == 4 and laid.launch is not None and laid.launch.start_timeout_s == 300


def test_one_bad_file_does_not_hide_the_others(tmp_path: Path) -> None:
    write(tmp_path, "bad", "engine = [")
    write(tmp_path, "other", 'name = "elsewhere"\nengine = "vllm"\n')
    problems: list[ProfileError] = []
    assert "demo" in load_profiles(tmp_path, problems=problems)
    assert [str(p).rpartition("/")[2].split(" ")[0] for p in problems] == ["bad.toml", "other.toml:"]
    with refused("toml-invalid", "bad.toml", error=ProfileError):
        load_profiles(tmp_path)


def test_saved_profiles_come_back_equal(tmp_path: Path) -> None:
    for profile in load_profiles(None).values():
        path = save_profile(tmp_path, profile)
        assert path.stat().st_mode & 0o777 == 0o600
        assert load_profiles(tmp_path, builtin=False)[profile.name] == profile


def test_urls_get_their_version_once() -> None:
    for base in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"):
        profile = make_profile({**GOOD, "base_url": base})
        assert profile.url("/v1/chat/completions") == "http://h:1/v1/chat/completions"
        assert profile.url("/health") == "http://h:1/health"
    assert make_profile({**GOOD, "base_url": "https://h/api/v3"}).url("/v1/models") == "https://h/api/v3/models"


def test_plain_http_to_elsewhere_is_warned_about() -> None:
    far = make_profile({**GOOD, "base_url": "http://10.0.0.7:8000", "api_key_env": "KEY"})
    assert "unencrypted" in far.warnings()[0] and "key" in far.warnings()[0]
    assert make_profile(GOOD).warnings() == []
    assert make_profile({**GOOD, "base_url": "http://[::1]:8000"}).warnings() == []
    assert make_profile({**GOOD, "base_url": "https://example.org"}).warnings() == []
    assert make_profile({**GOOD, "base_url": "http://127.0.0.1.evil.example"}).warnings() != []


def test_keys_come_from_a_variable_or_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text("  secret-123 \n")
    file.chmod(0o600)
    assert make_profile({**GOOD, "api_key_file": str(file)}).api_key() == "secret-123"
    for mode in (0o640, 0o604, 0o644):
        file.chmod(mode)
        with pytest.raises(ProfileError, match="chmod 600"):
            read_key_file(file)
    profile = make_profile({**GOOD, "api_key_env": "VLMCONSOLE_TEST_KEY"})
    with pytest.raises(ProfileError, match="is not set"):
        profile.api_key()
    monkeypatch.setenv("VLMCONSOLE_TEST_KEY", "two\r\nlines")
    with pytest.raises(ProfileError, match="odd characters"):
        profile.api_key()
    monkeypatch.setenv("VLMCONSOLE_TEST_KEY", "abc")
    assert profile.api_key() == "abc"
    with pytest.raises(ProfileError, match="cannot be read"):
        read_key_file(tmp_path / "none")


def test_no_profile_dump_can_hold_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLMCONSOLE_TEST_KEY", "hidden-value")
    profile = make_profile({**GOOD, "api_key_env": "VLMCONSOLE_TEST_KEY"})
    profile.api_key()
    assert "hidden-value" not in json.dumps(profile.model_dump(mode="json")) + repr(profile)


def test_redaction() -> None:
    assert redact("key abcd1234 refused", "abcd1234") == "key ••• refused"
    assert redact("Authorization: Bearer abc.def") == "Authorization: Bearer •••"
    assert redact("Incorrect API key provided: sk-proj-abcdef12") == "Incorrect API key provided: •••"
    assert redact("nothing here", None, "") == "nothing here"


def test_the_address_in_force_replaces_the_profiles_own() -> None:
    profile = ServerProfile(name="demo", engine="mlx", model="asset:tiny-qwen2.5-vl")
    at = profile.at("http://127.0.0.1:5/", "/m")
    assert (at.base_url, at.served_model, profile.base_url) == ("http://127.0.0.1:5", "/m", "")
