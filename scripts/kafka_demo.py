#!/usr/bin/env python3
"""The example with Kafka from beginning to end: a broker, a producer, the query, and its answers."""

import subprocess
import sys
import tempfile
from pathlib import Path

from kafka_broker import Broker, missing

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "kafka"


def main() -> None:
    """Run it, or say what is missing."""
    if why := missing():
        print(f"make kafka-demo is skipped: {why}")
        return
    with tempfile.TemporaryDirectory() as directory, Broker(Path(directory) / "broker") as broker:
        produce = [sys.executable, str(EXAMPLE / "produce.py"), broker.servers]
        run = [sys.executable, "-m", "watersmeet", "run", str(EXAMPLE / "topology.yaml"), "--once"]
        run += ["--set", f"brokers={broker.servers}", "--checkpoint", f"{directory}/checkpoint"]
        for command in (produce, run, [*produce, "--alarms"]):
            if subprocess.run(command).returncode != 0:
                sys.exit(1)


if __name__ == "__main__":
    main()
