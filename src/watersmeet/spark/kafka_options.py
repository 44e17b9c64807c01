"""Options of Kafka's clients in one dialect, librdkafka's, for links, sources and sinks; Spark's client is Java's.

Names without a dot are Spark's own (`subscribe`, `startingOffsets`), and so are `kafkaConsumer.*` and `fetchOffset.*`;
names that begin with `kafka.` are Java's.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from watersmeet.errors import InputError, hide_secret
from watersmeet.topology.model import Topology

# The newest on Maven Central that go with Spark 4.3; their parts are of other versions, as not all are there in each.
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.spark:spark-avro_2.13:4.1.1",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
GET_CONNECTOR = f"get it with --conf spark.jars.packages={','.join(CONNECTOR)}, or its jars with --conf spark.jars=..."

_SECRET = re.compile(r"password|secret|jaas|\.key$|\.pem$|token", re.IGNORECASE)
_LOGIN = "org.apache.kafka.common.security"
_SAME = {"sasl.mechanisms": "sasl.mechanism"}
_SPARKS = ("kafkaConsumer.", "fetchOffset.")
_AS_THEY_ARE = ("kafka.", *_SPARKS)
_OURS_ONLY = ("topic", "lost_offsets")  # of sinks, and not of clients


def connector_jars() -> list[Path]:
    """The jars of Spark's connector that `scripts/kafka_broker.py fetch` has got; none if it has not."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = Path(os.environ.get("WATERSMEET_KAFKA_JARS") or Path(cache) / "watersmeet" / "kafka")
    return sorted((root / "connector").glob("*.jar"))


def connector_settings(topology: Topology | None) -> dict[str, str]:
    """Spark's settings for a topology that reads topics or writes Avro, where the jars were fetched."""
    ends = (
        []
        if topology is None
        else [*(source.source for source in topology.sources), *(q.sink for q in topology.queries)]
    )
    jars = connector_jars() if any(end is not None and end.format == "kafka" for end in ends) else []
    return {"spark.jars": ",".join(map(str, jars))} if jars else {}


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """Options for librdkafka: without those of Spark and ours."""
    hide_secrets(options)
    named = {name.removeprefix("kafka."): value for name, value in options.items() if not name.startswith(_SPARKS)}
    return {name: value for name, value in named.items() if "." in name and name not in _OURS_ONLY}


def spark_options(options: Mapping[str, str], what: str) -> dict[str, str]:
    """Options for Spark's connector: librdkafka's in the words of Java.

    >>> spark_options({"subscribe": "t", "bootstrap.servers": "b:9092"}, "the source")
    {'subscribe': 't', 'kafka.bootstrap.servers': 'b:9092'}
    """
    hide_secrets(options)
    found = {name: value for name, value in options.items() if "." not in name or name.startswith(_AS_THEY_ARE)}
    ours = {_SAME.get(name, name): value for name, value in options.items() if name not in found}
    java: dict[str, str] = {}
    if "sasl.username" in ours or "sasl.password" in ours:
        user, password = ours.pop("sasl.username", ""), ours.pop("sasl.password", "")
        scram = ours.get("sasl.mechanism", "PLAIN").upper().startswith("SCRAM")
        module = f"{_LOGIN}.scram.ScramLoginModule" if scram else f"{_LOGIN}.plain.PlainLoginModule"
        java["sasl.jaas.config"] = f"{module} required username={_quoted(user)} password={_quoted(password)};"
    if "ssl.ca.location" in ours:
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": ours.pop("ssl.ca.location")}
    if "ssl.certificate.location" in ours or "ssl.key.location" in ours:
        chain, key = (_text(ours, name, what) for name in ("ssl.certificate.location", "ssl.key.location"))
        hide_secret(key)
        java |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}
    if ours.get("ssl.endpoint.identification.algorithm") == "none":
        ours["ssl.endpoint.identification.algorithm"] = ""
    return found | {f"kafka.{name}": value for name, value in (ours | java).items()}


def hide_secrets(options: Mapping[str, str]) -> None:
    """Leave the values of options that are secrets out of every message, also those that stand in the topology."""
    for name, value in options.items():
        if _SECRET.search(name) and not name.endswith(".location"):
            hide_secret(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(options: dict[str, str], name: str, what: str) -> str:
    path = options.pop(name, "")
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError):
        raise InputError(f"{what}: option {name!r}: {path or 'no file'} cannot be read; correct it") from None
