"""What a start is told when its agent's tools are not there."""

from __future__ import annotations

from services.loop.tables import Tables
from turnlog.codec import Codec
from turnlog.core.agents import AgentSpec
from turnlog.core.records import StartRun, ToolManifest
from turnlog.kafka.port import Received
from turnlog.testing import MemoryCluster

MANIFEST = ToolManifest(
    "weather", "forecast", "1", "tool-requests.weather", "", '{"type":"object"}', False, False, True, 1_000, 3, 200
)


class World:
    """The two topics, and the tables that follow them."""

    def __init__(self) -> None:
        cluster = MemoryCluster(now_ms=lambda: 0)
        for name in ("agents", "manifests"):
            cluster.create(name, 1)
        self.codec = Codec()
        self.rejected: list[str] = []
        self._producer = cluster.producer("test")
        self.tables = Tables(cluster.reader("t"), self.codec, "agents", "manifests", "tool-requests.", self._reject)
        self.tables.begin({"agents": 1, "manifests": 1})

    def _reject(self, record: Received, reason: str, detail: str) -> None:
        self.rejected.append(reason)

    def put(self, topic: str, key: str, value: bytes | None) -> None:
        self._producer.produce(topic, value, key=key.encode(), partition=0)
        self._producer.flush(1.0)
        while self.tables.poll():
            pass

    def tool(self, manifest: ToolManifest) -> None:
        self.put("manifests", f"{manifest.toolset}/{manifest.tool}", self.codec.encode(manifest))

    def refusal(self, pattern: str) -> str:
        self.put("agents", "a", self.codec.encode(AgentSpec("a", "1", "Do it.", "scripted/echo", tools=(pattern,))))
        found = self.tables.resolve("c", StartRun("a"))
        assert isinstance(found, str)
        return found


def test_a_misspelt_tool_and_an_absent_toolset_are_told_apart() -> None:
    world = World()
    world.tool(MANIFEST)
    assert "toolset 'weather' has forecast" in world.refusal("weather/forcast")
    assert "is a worker of toolset 'wether' running? Toolsets announced: weather" in world.refusal("wether/*")


def test_a_rejected_definition_is_named_until_it_is_mended() -> None:
    world = World()
    world.tool(MANIFEST)
    world.tool(MANIFEST._replace(tool="humid", parameters="[]"))
    world.put("manifests", "weather/wind", b"no avro")
    assert world.rejected == ["bad_definition", "not_avro"]
    for tool in ("humid", "wind"):
        assert "rejected, `turnlog dead-letters list` says why" in world.refusal(f"weather/{tool}")
    assert "rejected" not in world.refusal("weather/rain")
    world.put("manifests", "weather/wind", None)
    assert "rejected" not in world.refusal("weather/wind")
