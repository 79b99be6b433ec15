"""Turnlog runs AI agents on Kafka: every fact about a run is one event in a topic, and resume is a fold of it.

This file stays empty of imports, so that a tool team which imports one part does not pay for the others.
"""

__version__ = "0.1.0"
