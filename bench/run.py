"""One run: a cluster, a load from Locust, faults on schedule, everything recorded in a run folder."""

import importlib.metadata
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import psutil

from bench.cluster import Addresses, Cluster, ClusterError, Process, sample_process
from bench.manifest import Machine, Manifest, Mode, run_folder, write_manifest
from bench.samples import EventLog, Fault, ProcessSample
from bench.workload import PlannedFault, Workload
from client.blocking import Client
from client.config import ClientConfig
from remoting.errors import RemotingError, ResponseError
from remoting.route import TopicConfig

#: How far ahead of the first due operation the generator is started: Locust needs about a second to import.
GENERATOR_START_S: Final = 3.0
SAMPLE_EVERY_S: Final = 0.25
TICK_S: Final = 0.02
#: After the last due operation: the longest time-out, and Locust's way out.
GENERATOR_END_S: Final = 15.0

Progress = Callable[[str], None]


class GeneratorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the Locust process needs to know; handed over as a JSON file."""

    folder: str
    wire: list[str]
    http: list[str]
    brokers: list[str]
    workload: Workload
    seed: int
    prober_port: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Which run of a comparison this is."""

    mode: Mode
    scenario: str
    profile: str
    rep: int
    pair: int
    order_in_pair: int
    seed: int
    command: tuple[str, ...]


def run_once(
    out: Path, plan: RunPlan, workload: Workload, progress: Progress, *, attached: Addresses | None = None
) -> Path:
    """Make one run and return its folder; on a cluster of its own unless ``attached`` names one.

    Raises:
        ClusterError: If the cluster cannot be started, or a process died that nobody killed. The manifest
            then says why the run is void.
    """
    folder = run_folder(out, mode=plan.mode, scenario=plan.scenario, rep=plan.rep)
    folder.mkdir(parents=True)
    work = folder / "work"
    cluster = Cluster(mode=plan.mode, workload=workload, folder=work, attached=attached)
    manifest = describe(plan, workload, cluster.addresses)
    write_manifest(folder, manifest)
    helpers: list[Process] = []
    try:
        progress("starting the cluster")
        cluster.start()
        progress("creating topics")
        create_topics(cluster, workload)
        prober = Process(
            role="harness",
            index=1,
            command=[
                sys.executable,
                "-m",
                "bench.prober",
                str(folder),
                msgspec.json.encode(cluster.addresses.wire).decode(),
            ],
            log=work / "prober.log",
        )
        helpers.append(prober)
        prober.launch()
        port = re.search(r"port=(\d+)", prober.wait_ready())
        assert port is not None
        start_ns = time.monotonic_ns() + round(GENERATOR_START_S * 1e9)
        begin_ns = start_ns + round(workload.warmup_s * 1e9)
        end_ns = begin_ns + round(workload.measure_s * 1e9)
        manifest = msgspec.structs.replace(manifest, measure_begin_ns=begin_ns, measure_end_ns=end_ns)
        write_manifest(folder, manifest)
        config = GeneratorConfig(
            folder=str(folder),
            wire=cluster.addresses.wire,
            http=cluster.addresses.http,
            brokers=cluster.addresses.brokers,
            workload=workload,
            seed=plan.seed,
            prober_port=int(port[1]),
            start_ns=start_ns,
            end_ns=end_ns,
        )
        generator = generator_process(work, config)
        helpers.append(generator)
        generator.launch()
        with EventLog(folder, "harness") as log:
            drive(cluster, helpers, log, manifest, workload, progress)
        prober.terminate()
        prober.join()
        progress("stopping")
        cluster.stop()
    except (ClusterError, KeyboardInterrupt) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        write_manifest(folder, msgspec.structs.replace(manifest, void=reason, ended_ns=time.monotonic_ns()))
        raise
    finally:
        for process in helpers:
            process.kill()
        cluster.kill()
    write_manifest(folder, msgspec.structs.replace(manifest, ended_ns=time.monotonic_ns()))
    for data in work.glob("*-[0-9]"):
        shutil.rmtree(data)  # logs stay, the servers' data do not
    return folder


def topic_name(index: int) -> str:
    """Return the name of one of the topics that the real brokers hold."""
    return f"bench-{index}"


def create_topics(cluster: Cluster, workload: Workload) -> None:
    """Create the topics on every broker and wait until every nameserver routes each to all brokers.

    Raises:
        ClusterError: If that takes more than 30 s.
    """
    addresses = cluster.addresses
    topics = [topic_name(index) for index in range(workload.load.topics)]
    client = Client(ClientConfig(nameservers=tuple(addresses.wire)))
    try:
        for topic in topics:
            config = TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4)
            for broker in addresses.brokers:
                client.run(client.admin.create_topic(broker, config))

        def routed() -> bool:
            try:
                return all(
                    len(client.route(topic, nameserver=nameserver).broker_datas) == len(addresses.brokers)
                    for nameserver in addresses.wire
                    for topic in topics
                )
            except ResponseError:
                return False

        cluster.wait(routed)
    except RemotingError as error:
        raise ClusterError(f"topics cannot be created: {error}") from error
    finally:
        client.close()


def generator_process(work: Path, config: GeneratorConfig) -> Process:
    """Return the Locust process, not yet started; it ends by itself."""
    path = work / "generator.json"
    path.write_bytes(msgspec.json.encode(config))
    load = config.workload.load
    users = load.wire_users + load.http_users + load.send_users + load.sim_brokers
    seconds = (config.end_ns - time.monotonic_ns()) / 1e9 + load.timeout_s
    locustfile = Path(__file__).with_name("locustfile.py")
    command = [sys.executable, "-m", "locust", "--headless", "--only-summary", "--loglevel", "WARNING"]
    command += ["-f", str(locustfile), "--users", str(users), "--spawn-rate", str(users)]
    command += ["--run-time", f"{seconds:.0f}s", "--stop-timeout", f"{load.timeout_s:g}"]
    command += ["--exit-code-on-error", "0", "--bench-config", str(path)]
    return Process(role="generator", index=0, command=command, log=work / "generator.log")


def drive(
    cluster: Cluster,
    helpers: list[Process],
    log: EventLog,
    manifest: Manifest,
    workload: Workload,
    progress: Progress,
) -> None:
    """Sample processes and inject faults until the generator has ended.

    Raises:
        ClusterError: If something died by itself, or a fault outlasted the measured time.
    """
    generator = next(process for process in helpers if process.role == "generator")
    times_s = workload.fault_times_s(random.Random(manifest.seed))
    due = [
        (manifest.measure_begin_ns + round(at_s * 1e9), fault)
        for at_s, fault in zip(times_s, workload.faults, strict=True)
    ]
    struck: list[Fault] = []
    next_sample_ns = 0
    said = -1
    while generator.alive:
        now_ns = time.monotonic_ns()
        if now_ns > manifest.measure_end_ns + round(GENERATOR_END_S * 1e9):
            raise ClusterError(f"the generator did not end\n{generator.log_tail()}")
        if now_ns >= next_sample_ns:
            next_sample_ns = now_ns + round(SAMPLE_EVERY_S * 1e9)
            for sample in [*cluster.samples(), *helper_samples(helpers)]:
                log.record(sample)
            log.flush_if_due(now_ns)
            second = (now_ns - manifest.measure_begin_ns) // 1_000_000_000
            if second > said and second >= 0:
                said = second
                progress(f"second {min(second, round(workload.measure_s))} of {workload.measure_s:g}")
        if due and now_ns >= due[0][0]:
            _, fault = due.pop(0)
            progress(f"fault: {fault.kind}")
            struck.append(inject(cluster, fault, generator, log, helpers))
            log.record(struck[-1])
        time.sleep(TICK_S)
    assert generator.child is not None
    if generator.child.wait() != 0:
        raise ClusterError(f"the generator ended with {generator.child.returncode}\n{generator.log_tail()}")
    unmeasured = why_unmeasured(struck, workload, measure_end_ns=manifest.measure_end_ns)
    if unmeasured is not None:
        raise ClusterError(unmeasured)


def why_unmeasured(struck: Sequence[Fault], workload: Workload, *, measure_end_ns: int) -> str | None:
    """Return why the measured time does not show what the planned faults do; None if it does.

    A killed nameserver is back when it has printed its ready line, which takes as long as the machine needs.

    Args:
        struck: Faults in the order of the plan, as far as they came.
    """
    for fault in struck:
        assert fault.end_ns is not None, "every planned fault restarts what it killed"
        late_s = (fault.end_ns - measure_end_ns) / 1e9
        if late_s > 0:
            return (
                f"fault {fault.kind} was over {late_s:.1f} s after the measured time: "
                f"measure_s={workload.measure_s:g} is too short on this machine"
            )
    if len(struck) < len(workload.faults):
        return (
            f"fault {workload.faults[len(struck)].kind} did not strike before the load ended: "
            f"measure_s={workload.measure_s:g} is too short on this machine"
        )
    return None


def helper_samples(helpers: list[Process]) -> list[ProcessSample]:
    found = [process.sample() for process in helpers]
    own = sample_process(os.getpid(), role="harness", index=0)
    return [sample for sample in [*found, own] if sample is not None]


def inject(
    cluster: Cluster, fault: PlannedFault, generator: Process, log: EventLog, helpers: list[Process]
) -> Fault:
    """Kill, wait, restart; returns when the killed processes have printed their ready lines."""
    leader = cluster.leader()
    if fault.kind == "kill_one":
        targets = [leader if leader is not None else 0]
        role: str | None = cluster.role(targets[0])
    else:
        targets, role = list(range(len(cluster.nameservers))), None
    begin_ns = time.monotonic_ns()
    for index in targets:
        child = cluster.nameservers[index].child
        assert child is not None
        child.kill()
    for index in targets:
        cluster.nameservers[index].kill()
    restart_ns = begin_ns + round(fault.down_s * 1e9)
    while time.monotonic_ns() < restart_ns and generator.alive:
        for sample in [*cluster.samples(), *helper_samples(helpers)]:
            log.record(sample)
        time.sleep(min(SAMPLE_EVERY_S, max(0.0, (restart_ns - time.monotonic_ns()) / 1e9)))
    for index in targets:
        cluster.nameservers[index].launch()
    for index in targets:
        cluster.nameservers[index].wait_ready()
    return Fault(kind=fault.kind, targets=targets, begin_ns=begin_ns, end_ns=time.monotonic_ns(), role=role)


def describe(plan: RunPlan, workload: Workload, addresses: Addresses) -> Manifest:
    """Return the manifest as it stands when the run begins."""
    return Manifest(
        mode=plan.mode,
        scenario=plan.scenario,
        rep=plan.rep,
        pair=plan.pair,
        order_in_pair=plan.order_in_pair,
        profile=plan.profile,
        seed=plan.seed,
        durability=workload.durability if plan.mode == "raft" else None,
        nameservers=len(addresses.wire),
        brokers=len(addresses.brokers),
        timer_divisor=workload.timer_divisor,
        timers_ms=workload.timers_ms(),
        workload=msgspec.to_builtins(workload),
        machine=Machine(
            cpu=cpu_name(),
            cores=len(os.sched_getaffinity(0)),
            memory_bytes=psutil.virtual_memory().total,
            system=f"{platform.system()} {platform.release()}",
        ),
        versions=versions(),
        commit=commit(),
        command=list(plan.command),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        started_ns=time.monotonic_ns(),
        measure_begin_ns=0,
        measure_end_ns=0,
        settle_ms=round(workload.settle_s * 1000),
    )


def cpu_name() -> str:
    """Return the processor's name as the system gives it."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return what is installed of the packages that matter."""
    found = {"python": platform.python_version()}
    for name in ("routekeeper", "pysyncobj", "uvloop", "aiohttp", "locust", "pyspark"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def commit() -> str:
    """Return the checkout's commit, with ``+`` if files differ; ``unknown`` outside a checkout."""
    root = Path(__file__).resolve().parents[1]
    try:
        head = git(root, "rev-parse", "--short=12", "HEAD")
        changed = git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
