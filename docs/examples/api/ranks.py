"""One process for each GPU, as torchrun starts them, and a link that fails while they run."""

import subprocess

import railyard as ry

PROGRAM = """
import os, socket, time
rank, size, at = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_ADDR"]
if rank == 0:
    with socket.create_server((at, int(os.environ["MASTER_PORT"]))) as server:
        print(sum(int(server.accept()[0].makefile().readline()) for _ in range(size - 1)))
else:
    while True:
        try:
            connection = socket.create_connection((at, int(os.environ["MASTER_PORT"])))
            break
        except OSError:
            time.sleep(0.1)
    time.sleep(1)
    connection.sendall(b"%d\\n" % rank)
"""

with ry.fabric(ry.FabricSpec(kind="rail-only", domains=2, rails=2)) as net:
    ranks = net.ranks(["python", "-c", PROGRAM], stdout=subprocess.PIPE)
    with net.fault("link-down", "d1g0"):
        print([rank.wait(60) for rank in ranks])
    print(ranks[0].communicate()[0])
