"""A whole Turnlog on one machine: an embedded Apache Kafka, and the services beside it.

`broker` runs a real single-node Kafka (KRaft) from jars that `jars` fetched and verified, on a Java that `java` found;
`supervisor` starts the services around it, watches them and stops them in order. Nothing here imports Kafka's client:
the broker is a child process, and `probe` speaks the one request that tells whether it serves.
"""
