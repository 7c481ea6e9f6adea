"""What a page is given: the database as it is followed, and the address that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import parse_qsl, urlencode

from evokernel.dashboard.data.follow import Follower, Snapshot

KEPT = ("run",)  # carried from page to page


@dataclass
class View:
    """One request: every choice that a reader made stands in the address, so a link shows the same again."""

    follower: Follower
    url: str  # the database's
    path: str = "/"
    query: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, follower: Follower, url: str, path: str | None, search: str | None) -> View:
        return cls(follower, url, path or "/", dict(parse_qsl((search or "").lstrip("?"))))

    @cached_property
    def snapshot(self) -> Snapshot | None:
        """The run asked for, or the latest; None when there is none."""
        return self.follower.snapshot(self.query.get("run"))

    def shape_class(self, snapshot: Snapshot) -> str:
        """Return the shape class asked for, or the first."""
        names = snapshot.shape_classes
        asked = self.query.get("class", "")
        return asked if asked in names else names[0]

    def choice(self, key: str, options: list[str]) -> str:
        """Return what was chosen of the options, or the first; an empty text when there are none."""
        asked = self.query.get(key, "")
        return asked if asked in options else next(iter(options), "")

    def link(self, **changes: str) -> str:
        """Return this page's address with other choices."""
        return address(self.path, {**self.query, **changes})

    def to(self, path: str, **query: str | int) -> str:
        """Return another page's address, for the same run."""
        kept = {key: value for key, value in self.query.items() if key in KEPT}
        return address(path, {**kept, **query})


def address(path: str, query: Mapping[str, str | int]) -> str:
    return f"{path}?{urlencode(query)}" if query else path
