"""The files that a single-node Kafka is started with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from turnlog.local.ports import LOOPBACK

# One broker serves one person or one test run: everything small, nothing replicated, no waiting for company.
# What a production cluster must have instead is what `turnlog topics check` demands.
SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    # A message's time is the time the log got it: a client with a wrong clock must not move deadlines.
    "log.message.timestamp.type": "LogAppendTime",
    # A misspelt topic is an error, not a new topic with the wrong partition count.
    "auto.create.topics.enable": "false",
    # The first member of a group need not wait for others.
    "group.initial.rebalance.delay.ms": "0",
    # Tests of take-over want sessions shorter than Kafka's floor of 6 s.
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # The default of 128 MiB is a fifth of the heap that we give it.
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
    # A broker that restarts after a kill waits for its former self to be fenced.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}

_LOG4J = """\
# Kafka is silent without a logging configuration. Bounded: three old files of 10 MB.
rootLogger.level = INFO
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %-5p %m (%c{{1}})%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
# A page of every setting's value at each start, for each of a dozen components.
logger.config.name = org.apache.kafka.common.config
logger.config.level = WARN
logger.kafkaconfig.name = kafka.server.KafkaConfig
logger.kafkaconfig.level = WARN
# A line per partition and change, and one per record of the metadata log at each start.
logger.state.name = state.change.logger
logger.state.level = WARN
logger.controller.name = org.apache.kafka.controller
logger.controller.level = WARN
"""


def server_properties(
    *, port: int, advertised_port: int, controller_port: int, data: Path, overrides: Mapping[str, str]
) -> str:
    """Kafka's configuration. Listens on loopback only; `overrides` win over everything."""
    settings = {
        **SETTINGS,
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{advertised_port}",
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
        "log.dirs": str(data),
        **overrides,
    }
    return "".join(f"{name}={_escape(value)}\n" for name, value in settings.items())


def log4j_properties(log: Path) -> str:
    """Logging to one bounded file, without the noise."""
    return _LOG4J.format(log=_escape(str(log)))


def _escape(value: str) -> str:
    """A value as Java's property files want it: a backslash is an escape there."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
