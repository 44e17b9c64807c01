"""A scene whose checkpoint is in an object store."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scenes import Scene

from watersmeet.program.site.ledger import SiteLedger
from watersmeet.spark.store.object_store import open_store


@dataclass(frozen=True, eq=False)
class StoreScene(Scene):
    """A scene whose checkpoint is in a store."""

    url: str = ""

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"checkpoint": self.url}

    def ledger(self, site: str) -> SiteLedger:
        stored = open_store(self.url).get(f"{site}/ledger.json")
        if stored is None:
            return SiteLedger()
        data = json.loads(stored.data)
        return SiteLedger.from_json(json.dumps({name: data[name] for name in data if name not in ("crc32", "lease")}))

    def kept_state(self, site: str) -> set[str]:
        return {key.rpartition("/")[2] for key in open_store(self.url).sizes(f"{site}/state/")}
