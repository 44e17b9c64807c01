"""What `auto` ships against the best planner by hindsight on recordings of real streams, by running all planners.

WATERSMEET_RECORDINGS=DIR python -m benchmarks.recordings       or --data DIR, with intel_lab/ and zeek_wrccdc/
                          --only TEXT                           cases whose names have it
                          --flows                               every plan's traffic by link and purpose, and estimates

The recordings are not part of the project: readings of 52 sensors in a building (Intel Berkeley lab: 1.1 rows/s each)
and logs of a network exercise (Zeek, WRCCDC: 0.7 to 42 rows/s, in bursts, one host in 97 % of a log). Queries are as
somebody would write them who looks for something in them; nobody has fitted them to the planner.
"""

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.auto import Case, Totals, schema_of
from watersmeet.topology.model import EVERY_PAIR, Link, Query, Site, Source, Stream, Topology

VARIABLE = "WATERSMEET_RECORDINGS"
HQ = "hq"


@dataclass(frozen=True)
class Recorded:
    """A query over recordings: where streams arrive, where answers are wanted, how often sites have micro-batches."""

    name: str
    directory: str
    homes: dict[str, str]
    sql: str
    interval_s: float
    share: float  # of the recording, from its beginning
    is_selective: bool = True
    site: str = HQ


ZEEK, LAB = "zeek_wrccdc", "intel_lab"
APART = {"temperature": "north", "humidity": "south", "light": "east", "voltage": "west"}
IN_PAIRS = {"temperature": "north", "humidity": "north", "light": "south", "voltage": "south"}
QUERIES = (
    Recorded("names asked for and used", ZEEK, {"dns": "resolver", "ssl": "gateway"}, """
        SELECT d.query, s.uid FROM dns [RANGE 10 SECONDS] d, ssl [RANGE 10 SECONDS] s
        WHERE d.orig_h = s.orig_h AND d.query = s.server_name""", 1, 0.1),
    Recorded("names that do not exist, then TLS", ZEEK, {"dns": "resolver", "ssl": "gateway"}, """
        SELECT d.query, s.server_name, s.resp_h FROM dns [RANGE 5 SECONDS] d, ssl [RANGE 5 SECONDS] s
        WHERE d.orig_h = s.orig_h AND d.rcode_name = 'NXDOMAIN'""", 1, 0.1, False),
    Recorded("names and TLS of a host", ZEEK, {"dns": "resolver", "ssl": "gateway"}, """
        SELECT d.uid AS x, s.uid AS y FROM dns [RANGE 1 SECONDS] d, ssl [RANGE 1 SECONDS] s
        WHERE d.orig_h = s.orig_h""", 10, 0.1, False),
    Recorded("odd lookups", ZEEK, {"dns": "resolver", "weird": "sensor"}, """
        SELECT d.query, w.name FROM dns [RANGE 1 MINUTE] d, weird [RANGE 1 MINUTE] w WHERE d.uid = w.uid""", 60, 0.3),
    Recorded("odd lookups, at the resolver", ZEEK, {"dns": "resolver", "weird": "sensor"}, """
        SELECT d.query, w.name FROM dns [RANGE 10 SECONDS] d, weird [RANGE 10 SECONDS] w
        WHERE d.uid = w.uid""", 1, 0.1, site="resolver"),
    Recorded("remote desktops that fail", ZEEK, {"rdp": "desk", "ssl": "gateway", "analyzer": "sensor"}, """
        SELECT r.cookie, s.uid, a.failure_reason
        FROM rdp [RANGE 30 SECONDS] r, ssl [RANGE 30 SECONDS] s, analyzer [RANGE 30 SECONDS] a
        WHERE r.uid = s.uid AND s.uid = a.uid""", 10, 0.1, False),
    Recorded("two oddities of one host", ZEEK, {"weird": "sensor"}, """
        SELECT a.uid AS x, b.uid AS y, a.name AS one, b.name AS other
        FROM weird [RANGE 5 SECONDS] a, weird [RANGE 5 SECONDS] b
        WHERE a.orig_h = b.orig_h AND a.name = 'dns_unmatched_msg' AND b.name = 'dns_unmatched_reply'""", 10, 0.2),
    Recorded("mail, clocks and logs of a host", ZEEK, {"smtp": "mail", "ntp": "clock", "syslog": "log"}, """
        SELECT m.uid AS x, n.uid AS y, l.uid AS z
        FROM smtp [RANGE 1 MINUTES] m, ntp [RANGE 1 MINUTES] n, syslog [RANGE 5 SECONDS] l
        WHERE m.orig_h = n.orig_h AND n.orig_h = l.orig_h""", 10, 0.5),
    Recorded("clocks and logs", ZEEK, {"ntp": "clock", "syslog": "log", "dns": "resolver"}, """
        SELECT n.uid AS x, l.severity, d.query
        FROM ntp [TUMBLE 10 SECONDS] n, syslog [TUMBLE 10 SECONDS] l, dns [TUMBLE 10 SECONDS] d
        WHERE n.orig_h = l.orig_h AND l.orig_h = d.orig_h AND d.qtype_name = 'A'""", 60, 0.2),
    Recorded("TLS within a second of a desktop", ZEEK, {"ssl": "gateway", "rdp": "desk"}, """
        SELECT s.uid AS x, r.uid AS y FROM ssl [RANGE 10 SECONDS] s, rdp [RANGE 10 SECONDS] r
        WHERE s.orig_h = r.orig_h AND s.resp_h = r.resp_h AND r.ts >= s.ts
          AND r.ts <= s.ts + INTERVAL 1 SECOND""", 1, 0.1),
    Recorded("mail after a lookup", ZEEK, {"smtp": "mail", "dns": "resolver"}, """
        SELECT m.helo, d.query FROM smtp [ROWS 50] m, dns [RANGE 2 SECONDS] d
        WHERE m.orig_h = d.orig_h AND d.qtype_name = 'MX'""", 10, 0.3),
    Recorded("the last of each kind", ZEEK, {"ntp": "clock", "syslog": "log", "smtp": "mail"}, """
        SELECT n.uid AS x, l.uid AS y, m.uid AS z FROM ntp [ROWS 20] n, syslog [ROWS 100] l, smtp [ROWS 50] m
        WHERE n.orig_h = l.orig_h AND l.orig_h = m.orig_h""", 60, 0.5),
    Recorded("four logs", ZEEK, {"dns": "resolver", "weird": "sensor", "ssl": "gateway", "analyzer": "probe"}, """
        SELECT d.query, w.name, s.server_name, a.analyzer_name
        FROM dns [RANGE 2 SECONDS] d, weird [RANGE 2 SECONDS] w, ssl [RANGE 2 SECONDS] s, analyzer [RANGE 2 SECONDS] a
        WHERE d.uid = w.uid AND s.uid = a.uid AND d.orig_h = s.orig_h""", 10, 0.2),
    Recorded("who uses what, counted", ZEEK, {"dns": "resolver", "ssl": "gateway"}, """
        SELECT d.orig_h, count(*) AS times FROM dns [RANGE 10 SECONDS] d, ssl [RANGE 10 SECONDS] s
        WHERE d.orig_h = s.orig_h AND d.query = s.server_name GROUP BY d.orig_h, TUMBLE(10 SECONDS)""", 60, 0.1),
    Recorded("hot and dark", LAB, APART, """
        SELECT t.mote, t.value AS heat, l.value AS light FROM temperature [RANGE 1 MINUTES] t, light [RANGE 1 MINUTES] l
        WHERE t.mote = l.mote AND t.value > 30 AND l.value < 5""", 10, 0.005),
    Recorded("hot and dry, same reading", LAB, APART, """
        SELECT t.mote, t.value AS heat, h.value AS humidity
        FROM temperature [RANGE 30 SECONDS] t, humidity [RANGE 30 SECONDS] h
        WHERE t.mote = h.mote AND t.epoch = h.epoch AND t.value > 25 AND h.value < 35""", 60, 0.02),
    Recorded("three readings of a hot mote", LAB, APART, """
        SELECT t.value AS x, h.value AS y, v.value AS z
        FROM temperature [RANGE 30 SECONDS] t, humidity [RANGE 30 SECONDS] h, voltage [RANGE 30 SECONDS] v
        WHERE t.mote = h.mote AND h.mote = v.mote AND t.value > 28""", 10, 0.005),
    Recorded("four readings, a minute at a time", LAB, APART, """
        SELECT t.mote, t.value AS heat, h.value AS humidity, l.value AS light, v.value AS volts
        FROM temperature [RANGE 1 SECONDS] t, humidity [RANGE 1 SECONDS] h, light [RANGE 1 SECONDS] l,
          voltage [RANGE 1 SECONDS] v
        WHERE t.mote = h.mote AND h.mote = l.mote AND l.mote = v.mote AND l.value > 400 AND v.value < 2.5""", 60, 0.02),
    Recorded("four readings, two sites", LAB, IN_PAIRS, """
        SELECT t.mote, t.value AS heat, h.value AS humidity, l.value AS light, v.value AS volts
        FROM temperature [RANGE 1 SECONDS] t, humidity [RANGE 1 SECONDS] h, light [RANGE 1 SECONDS] l,
          voltage [RANGE 1 SECONDS] v
        WHERE t.mote = h.mote AND h.mote = l.mote AND l.mote = v.mote AND t.value > 28""", 600, 0.03, site="north"),
    Recorded("lights go on", LAB, {"light": "east"}, """
        SELECT a.mote, a.ts AS before, b.ts AS after FROM light [RANGE 2 MINUTES] a, light [RANGE 2 MINUTES] b
        WHERE a.mote = b.mote AND a.value < 50 AND b.value > 200 AND b.ts > a.ts""", 10, 0.05),
    Recorded("warmer than the neighbours", LAB, {"temperature": "north"}, """
        SELECT a.mote AS warm, b.mote AS cool FROM temperature [RANGE 10 SECONDS] a, temperature [RANGE 10 SECONDS] b
        WHERE a.zone = b.zone AND a.value > b.value + 3""", 10, 0.01),
    Recorded("weak batteries and wrong readings", LAB, APART, """
        SELECT v.mote, v.value AS volts, t.value AS heat
        FROM voltage [TUMBLE 5 MINUTES] v, temperature [TUMBLE 5 MINUTES] t
        WHERE v.mote = t.mote AND v.value < 2.3 AND t.value > 40""", 600, 0.1),
    Recorded("last voltages of hot motes", LAB, APART, """
        SELECT v.mote, v.value AS volts, t.value AS heat FROM voltage [ROWS 50] v, temperature [RANGE 10 SECONDS] t
        WHERE v.mote = t.mote AND t.value > 30""", 10, 0.01),
    Recorded("light and humidity of a zone", LAB, APART, """
        SELECT l.zone, l.value AS light, h.value AS damp FROM light [RANGE 5 SECONDS] l, humidity [RANGE 5 SECONDS] h
        WHERE l.zone = h.zone AND l.value > 500 AND h.value BETWEEN 30 AND 32""", 60, 0.02),
)  # fmt: skip


def cases(data: Path) -> Iterator[Case]:
    """The queries over the recordings in a directory."""
    for one in QUERIES:
        streams = tuple(
            Stream(
                name,
                "ts",
                schema_of(data / one.directory / f"{name}.parquet"),
                Source("parquet", str(data / one.directory / f"{name}.parquet")),
                watermark="5 seconds",
                site=home,
            )
            for name, home in one.homes.items()
            if f" {name} [" in one.sql
        )
        sites = tuple(Site(name) for name in dict.fromkeys((*(stream.site for stream in streams), one.site)))
        link = Link(EVERY_PAIR, latency_us=20_000)
        topology = Topology(streams, (Query("q", one.sql, site=one.site),), sites, default_link=link)
        yield Case(one.name, topology, one.interval_s, one.is_selective, one.share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get(VARIABLE))
    parser.add_argument("--only", default="")
    parser.add_argument("--flows", action="store_true")
    options = parser.parse_args()
    if options.data is None or not all((Path(options.data) / name).is_dir() for name in (ZEEK, LAB)):
        where = "no directory is named" if options.data is None else f"{options.data} has no {ZEEK}/ and {LAB}/"
        print(f"skipped, since there are no recordings: {where}; name one by --data or {VARIABLE}")
        return
    totals = Totals()
    for case in cases(Path(options.data)):
        if options.only in case.name:
            totals.add(case, flows=options.flows)
    totals.print()


if __name__ == "__main__":
    main()
