"""A plain radix tree of nodes by the rules that SGLang's follows, for where SGLang is not there.

::

    node      pages stored together, or what a cut left of them
    a cut     a path that ends, or leaves, inside a node splits it: both parts keep hits, priority
              and birth, and the part behind counts as used just then
    match     the nodes of the path are used, the last one last
    insert    the same, and one hit more for each; what is new is one node with one hit
    evict     among unlocked nodes without children the lowest one by the policy, until enough
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

Chunk = tuple[int, ...]
"""The tokens of one page."""


@dataclasses.dataclass(eq=False)
class Node:
    """Pages in a row.  `used` and `created` are times, by which no two nodes are alike."""

    chunks: list[Chunk]
    pages: list[int]
    parent: Node | None
    priority: int
    created: int
    used: int
    hits: int = 0
    locks: int = 0
    children: dict[Chunk, Node] = dataclasses.field(default_factory=dict)


KEYS: dict[str, Callable[[Node], tuple[int, int]]] = {
    "lru": lambda node: (0, node.used),
    "lfu": lambda node: (node.hits, node.used),
    "slru": lambda node: (int(node.hits >= 2), node.used),
    "priority": lambda node: (node.priority, node.used),
    "fifo": lambda node: (0, node.created),
}


class NodeTree:
    """The tree.  See the module, and trace.py for the calls."""

    def __init__(self, policy: str, page_tokens: int) -> None:
        self.key = KEYS[policy]
        self.page_tokens = page_tokens
        self.root = Node([], [], None, 0, 0, 0)
        self.time = 0

    def _now(self) -> int:
        self.time += 1
        return self.time

    def _chunks(self, tokens: Sequence[int]) -> list[Chunk]:
        whole = len(tokens) - len(tokens) % self.page_tokens
        return [
            tuple(tokens[at : at + self.page_tokens]) for at in range(0, whole, self.page_tokens)
        ]

    def _walk(self, chunks: list[Chunk]) -> list[Node]:
        """The nodes of the longest stored prefix, the last one cut where that ends."""
        nodes: list[Node] = []
        node, at = self.root, 0
        while at < len(chunks) and (child := node.children.get(chunks[at])) is not None:
            same = 0
            while same < len(child.chunks) and chunks[at + same : at + same + 1] == [
                child.chunks[same]
            ]:
                same += 1
            if same < len(child.chunks):
                child = self._cut(child, same)
            nodes.append(child)
            node, at = child, at + same
        for node in nodes:
            node.used = self._now()
        return nodes

    def _cut(self, node: Node, at: int) -> Node:
        """Splits a node; returns the part in front."""
        assert node.parent is not None
        front = dataclasses.replace(
            node,
            chunks=node.chunks[:at],
            pages=node.pages[:at],
            children={node.chunks[at]: node},
        )
        node.parent.children[node.chunks[0]] = front
        node.chunks, node.pages, node.parent = node.chunks[at:], node.pages[at:], front
        node.used = self._now()
        return front

    def insert(self, tokens: Sequence[int], pages: Sequence[int], priority: int) -> None:
        chunks = self._chunks(tokens)
        nodes = self._walk(chunks)
        known = sum(len(node.pages) for node in nodes)
        if known < len(chunks):
            parent = nodes[-1] if nodes else self.root
            rest = chunks[known:], list(pages[known:])
            fresh = Node(*rest, parent, priority, self._now(), self._now())
            parent.children[chunks[known]] = fresh
            nodes.append(fresh)
        for node in nodes:
            node.hits += 1
            node.priority = max(node.priority, priority)

    def match(self, tokens: Sequence[int]) -> tuple[int, Node]:
        nodes = self._walk(self._chunks(tokens))
        return sum(len(node.pages) for node in nodes), nodes[-1] if nodes else self.root

    def lock(self, node: Node) -> Node:
        self._add_locks(node, 1)
        return node

    def unlock(self, lock: Node) -> None:
        self._add_locks(lock, -1)

    def _add_locks(self, node: Node, count: int) -> None:
        while node.parent is not None:
            node.locks += count
            node = node.parent

    def _nodes(self) -> list[Node]:
        found, left = [], [*self.root.children.values()]
        while left:
            node = left.pop()
            found.append(node)
            left += node.children.values()
        return found

    def evict(self, pages: int) -> list[int]:
        gone: list[int] = []
        leaves = [node for node in self._nodes() if not node.children and not node.locks]
        while leaves and len(gone) < pages:
            node = min(leaves, key=self.key)
            leaves.remove(node)
            gone += node.pages[::-1]
            parent = node.parent
            assert parent is not None
            del parent.children[node.chunks[0]]
            if parent is not self.root and not parent.children and not parent.locks:
                leaves.append(parent)
        return gone

    def held(self) -> set[int]:
        return {page for node in self._nodes() for page in node.pages}
