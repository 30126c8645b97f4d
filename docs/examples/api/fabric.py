"""A fabric in a script: reachability, rates, a workload beside its prediction, and the recovery from a fault."""

import subprocess

import railyard as ry

spec = ry.FabricSpec(kind="rail-only", domains=2, rails=4)
with ry.fabric(spec) as net:
    print(net.ping("d0g1", "d1g2"), net.iperf("d0g0", "d1g0"))
    print(net.exec("d0g1", "ip route").stdout)
    found = net.run(ry.AllToAll(bytes="2MB"))
    print(found.seconds, found.predicted, found.verdict)
    with net.fault("link-down", "d0g1") as fault:
        print(fault.recovery.detect_ms, fault.recovery.reroute_ms, fault.recovery.first_packet_ms)
    program = net.processes("d0g0").popen(["python", "-c", "print('in a GPU')"], stdout=subprocess.PIPE)
    print(program.communicate()[0], program.returncode)
