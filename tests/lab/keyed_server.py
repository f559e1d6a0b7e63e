"""Small real servers that ask for a key the way vLLM and SGLang do: by variable, by flag."""

import sys
from pathlib import Path

# /v1/models and /server_info (SGLang's own, which repeats all its arguments) behind the key that it was given.
SERVER = """
import http.server, json, os, sys
words = sys.argv[1:]
key = words[words.index("--api-key") + 1] if "--api-key" in words else os.environ.get("VLLM_API_KEY", "")
port = int(words[words.index("--port") + 1])
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        fine = bool(key) and self.headers["Authorization"] == "Bearer " + key
        told = {"data": [{"id": "served"}], "version": "0.5.23", "api_key": key, "dtype": "bfloat16"}
        told |= {"admin_api_key": key, "internal_states": [{"server_args": {"api_key": key}}]}
        body = json.dumps(told if fine else {"error": "no key"}).encode()
        self.send_response(200 if fine else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""

SGLANG = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/server_args.py": (
        "import dataclasses\n@dataclasses.dataclass\nclass ServerArgs:\n    api_key: str = ''\n"
    ),
    "sglang/launch_server.py": (
        "import sys\nfrom sglang.srt.server_args import ServerArgs\n"
        "assert __name__ == '__main__' and __spec__.name == 'sglang.launch_server'\n"
        "key = sys.argv[sys.argv.index('--api-key') + 1]\n"
        "print('server_args=%s' % (ServerArgs(key),), flush=True)\n" + SERVER
    ),
}


def sglang_python(folder: Path) -> str:
    """A Python whose package `sglang` is a stand-in: as the real one, it takes its key as a flag and logs it."""
    for name, text in SGLANG.items():
        path = folder / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}/site" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return str(python)
