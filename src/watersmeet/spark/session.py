"""Finding Java and starting a Spark session with the settings that streaming joins want."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module, resources
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from watersmeet.errors import RunError, first_line
from watersmeet.spark.backend.protocol import backend_of
from watersmeet.spark.class_archive import archive_flags
from watersmeet.topology.secrets import resolved

OLDEST_JAVA = 17
_KERNELS = ("*.nbi", "*.nbc")  # compiled by numba, in __pycache__

# A few jobs a second of ever the same few kinds, and short-lived garbage. With Java's defaults its compilers and its
# collector took a third of all processor time of a run of a minute (docs/design/0001).
_COLLECTOR = ("-XX:+UseSerialGC", "-XX:MetaspaceSize=256m")
# Where Java only says what is to be done, the quick compiler is enough; by default it would have too little room. The
# heap, which begins with a 64th of the machine's memory by itself, would be filled with garbage before it is collected.
_FOR_FEW_ROWS = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=200m", "-XX:InitialHeapSize=96m")
# Where rows go through it, what is really hot, such as a parser of text, is worth the slow one, and nothing else is.
_BOTH_COMPILERS = (
    "-XX:Tier4InvocationThreshold=100000",
    "-XX:Tier4MinInvocationThreshold=20000",
    "-XX:Tier4CompileThreshold=300000",
    "-XX:Tier4BackEdgeThreshold=800000",
)

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The status store keeps this much even without the UI; a stream runs a few jobs every second for months.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "200000",
    # On a local disk a rename is atomic, and this manager takes a third of the time of the default one.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Python workers are reached through sockets; on loopback TCP every task waits for delayed acknowledgements.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "watersmeet.spark.daemon",
    # Otherwise tasks of Spark SQL and plain tasks each get workers of their own.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # Hadoop starts a chmod process for every file it makes: no checksum files beside those of the checkpoint.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

# Of these, what keeps executors on other machines from the driver, or needs the package before it is shipped there.
_LOCAL_ONLY = (
    "spark.driver.memory",
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.python.daemon.module",
    "spark.python.unix.domain.socket.enabled",
)


def _check_java() -> Callable[[], None]:
    """Refuse to go on without Java; what is returned refuses one that is too old, once Java has told."""
    home = os.environ.get("JAVA_HOME")
    command = os.path.join(home, "bin", "java") if home else shutil.which("java")
    cure = (
        f"install Java {OLDEST_JAVA} or newer (Debian: apt-get install openjdk-17-jre-headless) "
        "and put it on PATH or set JAVA_HOME"
    )
    if not command or not os.path.exists(command):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "Spark needs Java, and there is none on PATH"
        raise RunError(f"{where}; {cure}")
    asked = subprocess.Popen(  # in a process group of its own: Ctrl-C must not end it before it has told
        [command, "-version"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, process_group=0
    )

    def check_version() -> None:
        match = re.search(r'version "(\d+)', asked.communicate()[1])
        if not match or int(match.group(1)) < OLDEST_JAVA:
            found = f"is version {match.group(1)}" if match else "does not tell its version"
            raise RunError(f"{command} {found}; {cure}")

    return check_version


def start_session(
    master: str = "local[*]",
    app: str = "watersmeet",
    settings: dict[str, str] | None = None,
    *,
    has_rows: bool = True,
) -> SparkSession:
    """A Spark session for streaming joins, or the one that is already running in this process.

    `has_rows` says whether Java itself has to work through many rows, as it does for most sources.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    threading.Thread(target=_import_engine, daemon=True).start()  # while Java starts
    check_version = _check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # it lives for a second
    logging = resources.files("watersmeet.spark") / "log4j2.properties"
    builder = SparkSession.builder.master(master).appName(app)
    chosen = _SETTINGS if master.startswith("local") else {k: v for k, v in _SETTINGS.items() if k not in _LOCAL_ONLY}
    options = ["-Xss16m", f"-Dlog4j2.configurationFile=file:{logging}"]
    if master.startswith("local"):
        options += [*_COLLECTOR, *(_BOTH_COMPILERS if has_rows else _FOR_FEW_ROWS), *archive_flags()]
    chosen = chosen | {"spark.driver.extraJavaOptions": " ".join(options)}
    for name, value in (chosen | (settings or {})).items():
        builder = builder.config(name, value)
    try:
        _start_java(chosen | {"spark.master": master} | (settings or {}))
        session = builder.getOrCreate()
    except Exception as error:
        check_version()
        raise RunError(f"Spark did not start at master {master!r}: {first_line(error)}") from error
    except BaseException:  # Ctrl-C
        end_java()
        raise
    check_version()
    if settings is None or "spark.sql.shuffle.partitions" not in settings:
        session.conf.set("spark.sql.shuffle.partitions", str(session.sparkContext.defaultParallelism))
    backend_of(session).prepare()
    threading.Thread(target=_start_workers, args=(session,), daemon=True).start()
    return session


_java: list[subprocess.Popen[bytes]] = []  # what we have started


def _start_java(settings: dict[str, str]) -> None:
    """Start Java in a process group of its own: a signal to ours must not end it before the run has stopped."""
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        with _noting_processes():
            gateway = launch_gateway(conf, {"process_group": 0})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)


@contextlib.contextmanager
def _noting_processes() -> Iterator[None]:
    """Note the processes that PySpark starts: it forgets one that it is interrupted at waiting for."""

    def popen(*arguments: Any, **settings: Any) -> "subprocess.Popen[bytes]":
        with _interrupts_held_back():
            _java.append(subprocess.Popen(*arguments, **settings))
        return _java[-1]

    module: Any = java_gateway
    before, module.Popen = module.Popen, popen
    try:
        yield
    finally:
        module.Popen = before


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Let Ctrl-C wait for a moment: a process that is just being started must be known."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            signal.raise_signal(signal.SIGINT)


def end_java() -> None:
    """End the Java that we have started at once; it would outlive a process that ends while it starts."""
    for process in _java:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _import_engine() -> None:
    """Load what a run will need; compiled kernels take a second."""
    with contextlib.suppress(ImportError):
        import_module("watersmeet.spark.run")


def _start_workers(session: SparkSession) -> None:
    """Have the Python workers started while the query is being planned."""
    with contextlib.suppress(Exception):
        cores = session.sparkContext.defaultParallelism
        session.sparkContext.parallelize(range(cores), cores).mapPartitions(list).collect()


def ship_package(session: SparkSession) -> None:
    """Make this package importable in the workers of a cluster.

    As an archive that executors unpack where their workers import from, with compiled kernels: beside modules in an
    archive they could not be kept, and every executor would spend ten seconds on compiling them.
    """
    context = session.sparkContext
    archive = Path(context._temp_dir) / "kernels" / "watersmeet.zip"
    if archive.exists():  # by another session of the same application
        return
    import_module("watersmeet.spark.run")  # its kernels are compiled now if they never were
    package = _package()
    archive.parent.mkdir()
    kernels = [file for pattern in _KERNELS for file in package.rglob(pattern)]
    _zip(archive, package, [*package.rglob("*.py"), *kernels])
    context.addArchive(f"{archive}#{package.name}")


def zip_package(place: Path) -> Path:
    """The package as an archive that Python imports from."""
    archive, package = place / "watersmeet.zip", _package()
    _zip(archive, package.parent, package.rglob("*.py"))
    return archive


def _package() -> Path:
    return Path(__file__).resolve().parent.parent


def _zip(archive: Path, root: Path, files: Iterable[Path]) -> None:
    with zipfile.ZipFile(archive, "w") as zipped:
        for file in sorted(files):
            zipped.write(file, file.relative_to(root))


def empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """A frame without rows."""
    return backend_of(spark).empty_frame(schema)


def option_values(spark: SparkSession, options: Mapping[str, str], what: str) -> dict[str, str]:
    """Options of a source or sink as Spark gets them: with the values that references stand for."""
    return resolved(options, what, lambda name: spark.conf.get(name, None))
