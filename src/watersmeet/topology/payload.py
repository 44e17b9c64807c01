"""What the messages of a Kafka topic hold, and which columns are in their keys and timestamps instead."""

import json
from dataclasses import dataclass

from watersmeet.errors import TopologyError, did_you_mean

PAYLOADS = ("json", "avro", "arrow", "parquet")
SINK_PAYLOADS = ("json", "avro")
FRAMINGS = ("plain", "confluent")  # Confluent's clients put a zero and the number of a schema before Avro


@dataclass(frozen=True, slots=True)
class Payload:
    """The value of a message: a JSON object, an Avro record, or a table of Arrow (IPC) or Parquet with many rows.

    >>> Payload("avro", schema='{"type": "record", "name": "r", "fields": []}').framing
    'plain'
    """

    format: str = "json"
    key: str | None = None  # the column that is the key of messages; of a source, it is not in the value
    timestamp: str | None = None  # of a source: the column that is the time that messages have in the topic
    schema: str | None = None  # of Avro, as JSON
    framing: str = FRAMINGS[0]

    def __post_init__(self) -> None:
        if self.format not in PAYLOADS:
            raise TopologyError(f"unknown payload format {self.format!r}; {did_you_mean(self.format, PAYLOADS)}")
        if self.framing not in FRAMINGS:
            raise TopologyError(f"unknown framing {self.framing!r}; {did_you_mean(self.framing, FRAMINGS)}")
        if self.format != "avro" and (self.schema is not None or self.framing != FRAMINGS[0]):
            raise TopologyError(f"schema and framing are for Avro; remove them, or the payload {self.format}")
        if self.schema is not None:
            try:
                json.loads(self.schema)
            except ValueError as error:
                raise TopologyError(f"the Avro schema is not JSON: {error}") from None

    def check_source(self) -> None:
        """Refuse what no source can have."""
        if self.format == "avro" and self.schema is None:
            raise TopologyError("Avro is read with the schema that it was written with; give schema or schema_file")

    def check_sink(self) -> None:
        """Refuse what no sink can have."""
        if self.format not in SINK_PAYLOADS:
            raise TopologyError(f"answers are written as {' or '.join(SINK_PAYLOADS)}, not {self.format}")
        if self.timestamp is not None or self.framing != FRAMINGS[0]:
            raise TopologyError("timestamp and framing are for sources; remove them")
