"""The pages, each its content in the frame of static/layout.html: head, links, text without scripts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Template

CURRENT = ' aria-current="page"'
LIVE = '<p id="live"><span id="state" role="status">asking the nodes…</span> <span id="at"></span></p>'


@dataclass(frozen=True, slots=True)
class Page:
    """A page. `name`: name of its files. `instead`: command with the same content. `is_live`: fed with events;
    `is_linked`: in the list of links."""

    name: str
    title: str
    instead: str
    is_live: bool = False
    is_linked: bool = True

    @property
    def file(self) -> str:
        return f"{self.name}.html"


PAGES: Mapping[str, Page] = {
    "/": Page("cluster", "Cluster", "rmqha health", is_live=True),
    "/group": Page("group", "Group", "rmqha health", is_live=True, is_linked=False),
    "/topics": Page("topics", "Topics", "rmqha topic ls"),
    "/consumers": Page("consumers", "Consumers", "rmqha consumer ls"),
    "/messages": Page("messages", "Messages", "rmqha message get"),
    "/dead-letters": Page("dead-letters", "Dead letters", "rmqha dlq ls"),
    "/accounts": Page("accounts", "Accounts", "rmqha acl user ls"),
}
"""Pages by path, in the order of their links."""


def render_page(path: str, files: Mapping[str, bytes]) -> bytes:
    """The whole page at `path`. `files`: contents and layout.html by name."""
    page = PAGES[path]
    links = [
        f'<a href="{where}"{CURRENT if where == path else ""}>{other.title}</a>'
        for where, other in PAGES.items()
        if other.is_linked
    ]
    text = Template(files["layout.html"].decode()).substitute(
        title=page.title,
        name=page.name,
        links="\n".join(links),
        live=LIVE if page.is_live else "",
        instead=page.instead,
        content=files[page.file].decode(),
    )
    return text.encode()
