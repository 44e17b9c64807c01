"""The transport that a topology asks for."""

from importlib.util import find_spec
from pathlib import Path

from watersmeet.errors import InputError, RunError
from watersmeet.spark.durable import Disk
from watersmeet.spark.kafka_options import hide_secrets
from watersmeet.spark.links.directory import DirectoryLinks
from watersmeet.spark.links.objects import StoreLinks
from watersmeet.spark.links.protocol import Links
from watersmeet.spark.links.seal import OPEN, Seal, SharedKeys
from watersmeet.spark.store.object_store import local_directory, open_store
from watersmeet.topology.model import LinkTransport, Topology
from watersmeet.topology.secrets import resolved

_WHAT = "link_transport"


def default_links(topology: Topology) -> Path:
    """Where the parcels of links that are directories go, also if nobody says."""
    path = topology.link_transport.path
    return (local_directory(path) if path else None) or Path(topology.directory) / ".watersmeet" / "links"


def links_url(transport: LinkTransport) -> str | None:
    """The store that links are in, if they are in one."""
    return transport.path if transport.path and local_directory(transport.path) is None else None


def open_transport(topology: Topology, site: str, disk: Disk) -> Links:
    """All links of a site."""
    transport = topology.link_transport
    seal = seal_of(transport)
    if (url := links_url(transport)) is not None:
        return StoreLinks(open_store(url), site, seal)
    if transport.kind == "directory":
        return DirectoryLinks(default_links(topology), site, disk, seal)
    check_kafka_client()
    from watersmeet.spark.links.kafka import KafkaLinks

    return KafkaLinks(kafka_settings(transport), transport.topics, site, seal)


def check_kafka_client() -> None:
    """Refuse to go on where the package is missing that links over Kafka need."""
    if find_spec("confluent_kafka") is None:
        raise InputError(
            "link_transport: kind kafka needs the package confluent-kafka; install it with "
            "pip install 'watersmeet[kafka]'"
        )


def kafka_settings(transport: LinkTransport) -> dict[str, str]:
    """The settings of clients, with their secrets, which are shown nowhere from then on."""
    options = resolved(transport.options, _WHAT)
    hide_secrets(options)
    return options


def seal_of(transport: LinkTransport) -> Seal:
    """How what travels is sealed."""
    if transport.key_file is None and transport.key_env is None:
        return OPEN
    return SharedKeys(transport.key_file, transport.key_env)


def remove_links(topology: Topology) -> None:
    """Delete the topics or objects of links, to begin anew; directories are moved aside elsewhere."""
    transport, sites = topology.link_transport, topology.site_names
    if (url := links_url(transport)) is not None and len(sites) > 1:
        store = open_store(url)
        store.delete(store.sizes())
        return
    if transport.kind != "kafka" or len(sites) == 1:
        return
    check_kafka_client()
    from confluent_kafka import KafkaException

    from watersmeet.spark.links.kafka_board import topic_of
    from watersmeet.spark.links.kafka_topics import Topics, client_settings

    topics = [f"{transport.topics}.{a}.{b}" for a in sites for b in sites if a != b]
    try:
        Topics(client_settings(kafka_settings(transport))).remove([*topics, topic_of(transport.topics)])
    except KafkaException as error:
        raise RunError(
            f"the topics of links cannot be deleted: {error.args[0].str()}; start the brokers first"
        ) from None
