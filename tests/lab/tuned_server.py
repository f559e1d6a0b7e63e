"""A server whose speed hangs on its launch flags, for tuning without a model: python tuned_server.py --port P …"""

import argparse
import sys
from pathlib import Path

from vlmconsole.engines.profile import ServerProfile, make_profile


def profile() -> ServerProfile:
    argv = ["python", str(Path(__file__)), "--port", "{port}", "--chunk", "20", "--pool", "70"]
    line = {"argv": argv, "start_timeout_s": 60, "stop_grace_s": 5}
    return make_profile(
        {"name": "tuned", "engine": "vllm", "launch": line, "prefix_cache": False, "notes": "A test's server."}
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--chunk", type=int, required=True, help="ms to the first token")
    parser.add_argument("--pool", type=int, required=True)
    parser.add_argument("--max-num-seqs", type=int)
    asked = parser.parse_args()
    if asked.pool > 80:
        sys.exit("out of memory: the pool is larger than the card")
    from vlmconsole.measure.calibration.reference import ReferenceServer, Schedule

    limit = asked.max_num_seqs or 0
    ReferenceServer(Schedule(role_ms=1, ttft_ms=asked.chunk, itl_ms=1, tokens=4, limit=limit), port=asked.port).serve()


if __name__ == "__main__":
    main()
