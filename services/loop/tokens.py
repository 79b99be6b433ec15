"""Reply tokens: HMAC-SHA256 over what a result must name, so that no toolset can answer for another."""

from __future__ import annotations

import hmac
from collections.abc import Sequence


class ReplyTokens:
    """Signs with the first secret; accepts all of them (two during a rotation)."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        if not secrets or any(len(secret) < 16 for secret in secrets):
            raise ValueError("the installation secret needs at least 16 bytes: set TURNLOG_SECRET")
        self._keys = [hmac.new(secret, digestmod="sha256") for secret in secrets]

    def token(self, call_key: str, attempt: int) -> bytes:
        """32 bytes for this attempt of this call."""
        return self._sign(self._keys[0], call_key, attempt)

    def fits(self, token: bytes, call_key: str, attempt: int) -> bool:
        """Whether the token was made for this attempt of this call, under any accepted secret."""
        return any(hmac.compare_digest(token, self._sign(key, call_key, attempt)) for key in self._keys)

    @staticmethod
    def _sign(key: hmac.HMAC, call_key: str, attempt: int) -> bytes:
        mac = key.copy()  # the keyed state is computed once: 2 µs instead of 5
        data = call_key.encode()
        mac.update(b"%d:%s%d:%d" % (len(data), data, len(str(attempt)), attempt))
        return mac.digest()
