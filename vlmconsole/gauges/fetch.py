"""Fetching a server's metrics so that nothing it does can hold or fill the console."""

from __future__ import annotations

import time
from collections.abc import Mapping

import httpx

from vlmconsole.gauges.figures import SourceError

DEADLINE = 2.0  # seconds for the whole answer, however slowly it drips
LARGEST = 4 * 1024 * 1024  # bytes; a real page has 90 KB


class NotThere(SourceError):
    """The server answers, but has no such path (404 or 405)."""


class Fetcher:
    """One kept-alive connection to one server, asked with a deadline for the whole answer and a largest size."""

    def __init__(self, base_url: str, headers: Mapping[str, str] | None = None, deadline: float = DEADLINE) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._deadline = deadline
        # No proxies of the environment (the servers are ours), no redirects (they would lead somewhere unasked).
        self._client = httpx.Client(headers=headers, timeout=deadline, trust_env=False, follow_redirects=False)

    def get(self, path: str) -> str:
        """The text at ``path``. Raises :class:`NotThere`, or SourceError with what happened in one line."""
        end = time.monotonic() + self._deadline
        where = f"{self.base_url}{path}"
        try:
            with self._client.stream("GET", where, timeout=self._deadline) as response:
                if response.status_code in (404, 405):
                    raise NotThere(f"{where} is not there ({response.status_code})")
                if response.status_code in (401, 403):
                    raise SourceError(f"{where} wants a key ({response.status_code})", "Set the profile's api_key_env.")
                if response.status_code != 200:
                    raise SourceError(f"{where} answered {response.status_code}")
                parts, size = [], 0
                for part in response.iter_bytes():
                    size += len(part)
                    if size > LARGEST:
                        raise SourceError(f"{where} sends more than {LARGEST // 1024**2} MiB: that is no metrics page")
                    if time.monotonic() > end:
                        raise SourceError(f"{where} did not finish its answer within {self._deadline:g} s")
                    parts.append(part)
        except httpx.TimeoutException:
            raise SourceError(f"{where} does not answer within {self._deadline:g} s") from None
        except httpx.ConnectError:
            raise SourceError(f"nothing answers at {self.base_url}", "Is the server started?") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SourceError(f"{where} broke off: {str(error) or type(error).__name__}") from None
        return b"".join(parts).decode("utf-8", "replace")

    def close(self) -> None:
        self._client.close()
