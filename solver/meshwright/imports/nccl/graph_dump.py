"""NCCL's graph dumps (NCCL_GRAPH_DUMP_FILE): the rings and trees that it plans."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.imports.safe_xml import Element
from meshwright.imports.text import fail, shown, whole

PATTERNS = {
    "1": "balanced tree",
    "2": "split tree",
    "3": "tree",
    "4": "ring",
    "5": "NVLS",
}


@dataclass(frozen=True)
class Graph:
    """One graph: its attributes as written, and by channel its GPUs in order."""

    id: str
    pattern: str
    nchannels: int
    speedintra: str
    speedinter: str
    typeintra: str
    typeinter: str
    channels: tuple[tuple[str, ...], ...]

    @property
    def kind(self) -> str:
        """Return the name of the pattern."""
        return PATTERNS.get(self.pattern, f"pattern {self.pattern}")


def read_graphs(root: Element, name: str) -> tuple[Graph, ...]:
    """Return the graphs of a dump.

    Raises:
        SpecError: a graph does not say how many channels it has; with file and line.
    """
    return tuple(_read_graph(graph, name) for graph in root.all("graph"))


def _read_graph(graph: Element, name: str) -> Graph:
    count = whole(graph.get("nchannels"), 10_000)
    if count is None:
        value = shown(graph.get("nchannels"))
        fail(name, graph.line, f"nchannels={value}: expected a whole number")
    texts = ("id", "pattern", "speedintra", "speedinter", "typeintra", "typeinter")
    return Graph(
        **{key: graph.get(key) for key in texts},
        nchannels=count,
        channels=tuple(
            tuple(gpu.get("dev") for gpu in channel.all("gpu"))
            for channel in graph.all("channel")
        ),
    )
