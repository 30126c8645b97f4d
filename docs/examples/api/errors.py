"""Errors of a script: each has a type, and what its one line consists of."""

import railyard as ry

try:
    with ry.fabric(ry.FabricSpec(kind="rail-only", domains=2, rails=2)) as net:
        net.fault("link-down", "d7g0")
except ry.BadInput as error:
    print(error.field, error.value, error.allowed)
except ry.MachineLacks as error:
    print(error.what, error.remedy)
