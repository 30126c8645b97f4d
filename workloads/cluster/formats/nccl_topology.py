"""NCCL's topology as XML (NCCL_TOPO_DUMP_FILE, NCCL_TOPO_FILE): the GPUs and NICs of a host, and the PCI tree between.

A GPU's NICs are those that the fewest PCI switches separate it from, as NCCL chooses them (`ncclTopoGetLocal`).
"""

from typing import Final
from xml.etree.ElementTree import Element, ParseError, XMLParser

from railyard.core.errors import BadInput
from railyard.workloads.cluster.definition import CLUSTER_FORMATS, DocumentFormat
from railyard.workloads.cluster.records import Cluster, Nic, Source

MBIT: Final = 1e6  # NCCL's speeds are in Mbit/s
Path = tuple[int, ...]
"""The position of an element: of each ancestor, its number among its siblings."""


@CLUSTER_FORMATS.register("nccl-topology")
class NcclTopology(DocumentFormat):
    """GPUs and NICs of a host."""

    title = "NCCL topology XML"

    def recognizes(self, head: bytes) -> bool:
        """Return whether the root element is `system`."""
        return head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"<") and b"<system" in head

    def read(self, content: bytes, cluster: Cluster, source: Source) -> None:
        """Take the GPUs, the NICs and which of them are near. BadInput for XML that is cut off."""
        root = parse_xml(content, source.file)
        gpus: dict[int, Path] = {}
        nics: dict[int, Path] = {}
        host = cluster.host(source.file.removesuffix(".xml"))
        for element, position, bus_id in _elements(root):
            if element.tag == "gpu":
                number = _number(element, "dev", source)
                gpus[number] = position
                host.gpus[number] = bus_id
            elif element.tag == "net":
                number = _number(element, "dev", source)
                nics[number] = position
                speed = _number(element, "speed", source)
                name = element.get("name", "")
                host.nics[number] = Nic(number, name, rate_bps=speed * MBIT if speed > 0 else None)
        if not gpus:
            raise BadInput(source.file, "its content", "names no GPU")
        if not nics:
            cluster.gaps[f"{source.file} names no NIC"] = None
        for number, position in gpus.items():
            host.nics_of_gpu[number] = _nearest(position, nics)


def parse_xml(content: bytes, file: str) -> Element:
    """Return the root of an XML file. BadInput says where it is cut off or wrong; entities are refused."""
    # entities of a few bytes can expand to all of the memory
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise BadInput(file, "DOCTYPE", "is not read: NCCL writes none")
    parser = XMLParser()
    try:
        parser.feed(content)
        return parser.close()
    except ParseError as error:
        line, column = error.position
        raise BadInput(file, f"line {line}, column {column}", "is cut off or no XML") from error


def _elements(root: Element) -> list[tuple[Element, Path, str]]:
    """Return each element with its position and the bus id of the PCI device that it is in."""
    elements: list[tuple[Element, Path, str]] = []
    waiting: list[tuple[Element, Path, str]] = [(root, (), "")]
    while waiting:
        element, position, bus_id = waiting.pop()
        elements.append((element, position, bus_id))
        bus_id = element.get("busid", bus_id)
        for number, child in enumerate(element):
            waiting.append((child, (*position, number), bus_id))
    return elements


def _number(element: Element, name: str, source: Source) -> int:
    text = element.get(name, "0")
    try:
        return int(text)
    except ValueError as error:
        raise BadInput(f"{source.file}: {element.tag} {name}", text, "must be a whole number") from error


def _nearest(gpu: Path, nics: dict[int, Path]) -> tuple[int, ...]:
    """Return the NICs that have the most ancestors in common with a GPU; all of them if none has one but the root."""
    shared = {number: _common(gpu, position) for number, position in nics.items()}
    most = max(shared.values(), default=0)
    return tuple(sorted(number for number, count in shared.items() if count == most))


def _common(a: Path, b: Path) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count
