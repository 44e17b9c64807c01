#!/usr/bin/env python3
"""An Apache Kafka broker on the loopback address, from Apache's own jars, for tests, benchmarks and the example.

    python scripts/kafka_broker.py fetch     get the jars of the broker and of Spark's connector (needs mvn)
    python scripts/kafka_broker.py run       run a broker until Ctrl-C, and say where it listens

Jars are kept in $WATERSMEET_KAFKA_JARS, or in the user's cache directory.
"""

import argparse
import base64
import contextlib
import importlib.util
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType

from free_ports import free_port

KAFKA = "4.2.1"
# The newest connector on Maven Central; it works with the installed PySpark 4.3.0. Its own parts are of other versions
# because not all of them are there in each one.
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.spark:spark-avro_2.13:4.1.1",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
BROKER = (f"org.apache.kafka:kafka_2.13:{KAFKA}",)
_FETCH = "python scripts/kafka_broker.py fetch"
_START_S = 300.0  # on a machine that has other things to do
USER, PASSWORD = "watersmeet", "a password for loopback"  # of the listener with TLS
_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def jars() -> Path:
    """Where the jars are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("WATERSMEET_KAFKA_JARS") or Path(cache) / "watersmeet" / "kafka")


def broker_jars() -> Path:
    """Those of the broker."""
    return jars() / f"broker-{KAFKA}"


def connector_jars() -> list[Path]:
    """Those that Spark needs to read and write topics; none if they were not fetched."""
    return sorted((jars() / "connector").glob("*.jar"))


def missing() -> str:
    """What is missing to run a broker and how to get it, in one sentence; empty if nothing is."""
    if shutil.which("java") is None:
        return "a Kafka broker needs Java: install openjdk-17-jre-headless"
    if importlib.util.find_spec("confluent_kafka") is None:
        return "the package confluent-kafka is not installed: pip install 'watersmeet[kafka]'"
    if not any(broker_jars().glob("kafka_2.13-*.jar")) or len(connector_jars()) < len(CONNECTOR):
        return f"the jars of Apache Kafka are not here: get them with `{_FETCH}`, which needs mvn and Maven Central"
    return ""


def fetch() -> None:
    """Get the jars by their coordinates."""
    if shutil.which("mvn") is None:
        sys.exit("kafka_broker: mvn is needed to get jars from Maven Central: install maven")
    _copy(BROKER, broker_jars(), transitive=True)
    _copy(CONNECTOR, jars() / "connector", transitive=False)  # Spark has the rest


def _copy(coordinates: tuple[str, ...], target: Path, *, transitive: bool) -> None:
    alone = (
        ""
        if transitive
        else "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    )
    wanted = ""
    for group, artifact, version in (one.split(":") for one in coordinates):
        name = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        wanted += f"<dependency>{name}{alone}</dependency>"
    head = '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    own = "<groupId>watersmeet</groupId><artifactId>jars</artifactId><version>1</version>"
    with tempfile.TemporaryDirectory() as directory:
        pom = Path(directory) / "pom.xml"
        pom.write_text(f"{head}{own}<dependencies>{wanted}</dependencies></project>", encoding="utf-8")
        fresh = Path(directory) / "jars"
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        subprocess.run([*command, "-DincludeScope=runtime", f"-DoutputDirectory={fresh}"], check=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(fresh, target)
    print(f"{len(list(target.glob('*.jar')))} jars in {target}")


class Broker:
    """One broker in KRaft mode on free ports of the loopback address; its data outlives `kill` and `stop`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port, controller, self.secure_port = free_port(), free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._properties = directory / "server.properties"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"{self._listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": self._listeners,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(directory / "server.pem"),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
            ),
            "log.dirs": str(directory / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "controlled.shutdown.enable": "false",
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        self._properties.write_text(text, encoding="utf-8")
        write_certificate(directory)
        identity = "-"
        while identity.startswith("-"):  # it would be taken for an option
            identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        done = self._java("kafka.tools.StorageTool", "format", "-t", identity, "-c", str(self._properties))
        if done.wait() != 0:
            raise RuntimeError(f"the broker's directory cannot be made: see {directory}/log")

    @property
    def _listeners(self) -> str:
        return f"PLAINTEXT://127.0.0.1:{self.port},SASL_SSL://127.0.0.1:{self.secure_port}"

    @property
    def secure_options(self) -> dict[str, str]:
        """What clients need to reach it by TLS, with a name and a password."""
        return {
            "bootstrap.servers": f"127.0.0.1:{self.secure_port}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(self.directory / "ca.pem"),
        }

    @property
    def servers(self) -> str:
        """Where clients find it."""
        return f"127.0.0.1:{self.port}"

    def _java(self, *arguments: str) -> "subprocess.Popen[bytes]":
        command = ["java", *_JAVA, "-cp", f"{broker_jars()}/*", *arguments]
        with open(self.directory / "log", "ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory, process_group=0)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = self._java("kafka.Kafka", str(self._properties))
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the broker did not start: see {self.directory}/log")
            time.sleep(0.05)

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        with contextlib.suppress(OSError, KafkaException):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            client = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
            return bool(client.list_topics(timeout=2).brokers)
        return False

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash does."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def __enter__(self) -> "Broker":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()


def write_certificate(directory: Path) -> None:
    """A key and a certificate that the broker signs itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=30))
    made = made.add_extension(address, critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (directory / "ca.pem").write_bytes(certificate)
    (directory / "server.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form) + certificate)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("fetch", "run"))
    if parser.parse_args().command == "fetch":
        fetch()
        return
    if why := missing():
        sys.exit(f"kafka_broker: {why}")
    with tempfile.TemporaryDirectory() as directory, Broker(Path(directory)) as broker:
        print(f"a broker listens at {broker.servers}; Ctrl-C ends it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
