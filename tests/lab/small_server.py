"""A small real server process, for tests of starting and stopping that need no model."""

from vlmconsole.engines.profile import ServerProfile, make_profile

# A server of /v1/models after a delay, with a child in its session; `stubborn` ignores TERM.
SERVER = """
import http.server, json, os, signal, subprocess, sys, time
port, delay, how = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
print("phase one", flush=True)
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if how == "dies":
    print("no such weights: /models/gone", flush=True)
    sys.exit(3)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
time.sleep(delay)
print("phase two", flush=True)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"data": [{"id": "served"}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


def profile(delay: float = 0.0, how: str = "kind", **more: object) -> ServerProfile:
    argv = ["python", "-c", SERVER, "{port}", str(delay), how]
    values = {"argv": argv, "start_timeout_s": 20, "stop_grace_s": 5, **more}
    return make_profile({"name": "box", "engine": "openai", "launch": values})
