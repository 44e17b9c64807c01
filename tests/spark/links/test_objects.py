"""Links that are objects of a store, in whole runs; `test_protocol.py` has the transport by itself."""

from pathlib import Path
from typing import Any

from scenes import Scene, by_arrow, make_batches

import watersmeet as wm
from watersmeet.spark.store.object_store import open_store

JOIN = "SELECT a.id AS a_id, b.id AS b_id FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"


def test_two_sites_over_a_store_answer_as_the_oracle_does(spark: Any, s3_url: str, tmp_path: Path) -> None:
    data = {name: make_batches(seed) for seed, name in enumerate("ab")}
    homes, transport = {"a": "ams", "b": "nyc"}, {"kind": "directory", "path": f"{s3_url}/links"}
    scene = Scene(tmp_path, batches=data, queries={"q": JOIN}, homes=homes, site="nyc", transport=transport).write()
    scene.run(spark)
    scene.check()
    store = open_store(f"{s3_url}/links")
    assert store.sizes(), "both ends have said who they are"
    assert not [key for key in store.sizes() if key.endswith(".parcel")], "what is acknowledged is deleted"
    for name, seed in (("a", 5), ("b", 6)):
        scene.add(name, make_batches(seed, first=210))
    scene.run(spark)  # on the same checkpoints and objects
    scene.check()
    wm.start(scene.topology, spark=spark, once=True, checkpoint=scene.checkpoint, fresh=True).awaitTermination()
    assert by_arrow(scene.sink("q")) == scene.expected(), "begun anew, with objects that are anew too"
