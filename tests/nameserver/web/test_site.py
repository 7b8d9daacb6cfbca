"""The page's files and headers."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from nameserver.web.layout import LIVE, PAGES
from nameserver.web.site import CONTENT_TYPES
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


async def test_every_page_has_the_one_head_and_marks_its_own_link() -> None:
    async with page() as site:
        heads = set()
        for path, item in PAGES.items():
            text = (await site.get(path))[2].decode()
            assert f"<title>{item.title} · rmqha</title>" in text and f'src="/web/{item.name}.js"' in text
            assert text.count('aria-current="page"') == item.is_linked and f"<code>{item.instead}</code>" in text
            assert text.count('id="live"') == item.is_live and "$" not in text
            head = text.partition("<main")[0]
            for own in (item.title, item.name, ' aria-current="page"'):
                head = head.replace(own, "")
            heads.add(head.replace(LIVE, "").replace(path, ""))
            assert len(re.findall("<h1", text)) == 1
        assert all(text.count("<a href=") == 6 for text in heads)


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
