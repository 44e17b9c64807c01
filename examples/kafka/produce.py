"""Fill the topics of the example with a minute of made-up readings, and read the alarms.

python examples/kafka/produce.py BROKERS            make the topics and fill them
python examples/kafka/produce.py BROKERS --alarms   print what is in the topic of answers
"""

import argparse
import io
import json
import sys
import uuid
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

TOPICS = ("temperature", "pressure", "vibration", "alarms")
MACHINES, SECONDS, MOST = 50, 60, {"temperature": 100.0, "pressure": 10.0, "vibration": 1.0}
START = datetime(2026, 1, 1, tzinfo=UTC)


def make_topics(brokers: str) -> None:
    """Make the topics; those of an earlier run stay as they are."""
    admin = AdminClient({"bootstrap.servers": brokers})
    for topic, done in admin.create_topics([NewTopic(topic, 2, -1) for topic in TOPICS]).items():
        try:
            done.result()
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                sys.exit(f"topic {topic} cannot be made: {error.args[0].str()}")


def produce(brokers: str) -> None:
    """Write every machine's readings, and two messages that are none."""
    chance = np.random.default_rng(1)
    producer = Producer({"bootstrap.servers": brokers})
    for second in range(SECONDS):
        at = START + timedelta(seconds=second)
        readings = {topic: np.round(chance.random(MACHINES) * most, 3) for topic, most in MOST.items()}
        for topic in ("temperature", "pressure"):
            for machine, reading in enumerate(readings[topic]):
                value = json.dumps({"reading": float(reading), "ts": at.isoformat()})
                producer.produce(topic, value.encode(), str(machine).encode())
        columns = {"machine": range(MACHINES), "reading": readings["vibration"], "ts": [at] * MACHINES}
        table, data = pa.table(columns), io.BytesIO()
        with pa.ipc.new_stream(data, table.schema) as writer:
            writer.write_table(table)
        producer.produce("vibration", data.getvalue())
        producer.poll(0)
    producer.produce("temperature", b"out of order", b"7")
    producer.produce("vibration", b"out of order")
    if producer.flush(60):
        sys.exit("the brokers did not take all messages")
    print(f"{SECONDS * MACHINES:,} readings in each of three topics, and two messages that are none")


def show_alarms(brokers: str) -> None:
    """Print the first alarms, as a reader of committed messages has them, and count them."""
    own = {"group.id": uuid.uuid4().hex, "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    reader = Consumer({"bootstrap.servers": brokers, "isolation.level": "read_committed", **own})
    reader.subscribe(["alarms"])
    found, ended = [], set()
    while len(ended) < 2:
        message = reader.poll(30)
        if message is None:
            sys.exit("the brokers do not answer")
        if message.error() is None:
            found.append(message.value().decode())
        else:
            ended.add(message.partition())
    reader.close()
    print(*sorted(found)[:5], f"... {len(found):,} alarms", sep="\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("brokers")
    parser.add_argument("--alarms", action="store_true")
    options = parser.parse_args()
    if options.alarms:
        show_alarms(options.brokers)
    else:
        make_topics(options.brokers)
        produce(options.brokers)


if __name__ == "__main__":
    main()
