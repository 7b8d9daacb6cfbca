"""The page's files and headers."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from nameserver.web.site import CONTENT_TYPES, PAGES
from tests.nameserver.web.site import page

STATIC = sorted(item.name for item in (files("nameserver.web") / "static").iterdir())


async def test_every_answer_forbids_other_sites_and_markup_from_text() -> None:
    async with page() as site:
        for path in (*PAGES, *(f"/web/{name}" for name in STATIC), "/lookup?by=x", "/web/nothing"):
            status, headers, body = await site.get(path)
            assert status == (404 if path == "/web/nothing" else 400 if path.startswith("/lookup") else 200), path
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "require-trusted-types-for 'script'" in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert body


async def test_files_have_their_types_and_nothing_else_is_served() -> None:
    async with page() as site:
        for name in STATIC:
            _, headers, _ = await site.get(f"/web/{name}")
            assert headers["content-type"] == CONTENT_TYPES[name.rpartition(".")[2]]
        for path in ("/web/../config.py", "/web/%2e%2e/config.py", "/web//etc/passwd", "/web/"):
            assert (await site.get(path))[0] == 404


async def test_a_browser_that_came_by_another_name_is_turned_away() -> None:
    async with page() as site:
        assert (await site.get("/lookup?by=id&id=x", {"Host": "evil.example"}))[0] == 421


@pytest.mark.parametrize("name", STATIC)
def test_files_load_nothing_from_elsewhere_and_parse_no_markup(name: str) -> None:
    text = (files("nameserver.web") / "static" / name).read_text()
    addresses = set(re.findall(r"https?://[^\"' ]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)
    if name.endswith(".html"):
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?! type=\"module\" src=\"/web/)", text)
