"""The status page: one file that needs nothing else, and the headers that keep it so."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

PAGE = resources.files("preheatd.control").joinpath("page.html").read_bytes()


def _hashes(page: bytes, tag: bytes) -> str:
    """What the policy calls the inline blocks of a tag: their digests."""
    blocks = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(block).digest()).decode() for block in blocks)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def content_security_policy(page: bytes) -> str:
    """Only the page's own style and script, and questions to the daemon that it came from."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src {_hashes(page, b'style')}",
            f"script-src {_hashes(page, b'script')}",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        )
    )


HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": content_security_policy(PAGE),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
