"""Items of an experiment's section that have a workload each, parsed one by one."""

from collections.abc import Mapping

from railyard.core.config import OnFabrics, parse_by_kind, parse_model
from railyard.workloads.spec import Workload


def parsed_items(data: object, key: str, item_type: type[OnFabrics], kinds: Mapping[str, type[Workload]]) -> object:
    """Return a section with each item parsed by itself, so that a message has the path of a field within its item.

    `data`: the section as YAML gives it; anything but a list is returned as it is, for pydantic to refuse. `key`: of
    the section. `kinds`: of workload that an item may have, by name.
    """
    if not isinstance(data, list):
        return data
    items: list[OnFabrics] = []
    for number, item in enumerate(data):
        field = f"{key}.{number}"
        keys = item
        if isinstance(item, Mapping) and "workload" in item:
            workload = parse_by_kind(item["workload"], kinds, f"{field}.workload")
            keys = {**item, "workload": workload}
        items.append(parse_model(item_type, keys, field))
    return items
