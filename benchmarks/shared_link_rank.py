"""The two ends of benchmarks.shared_link, one process each; light, as a slow node starts them.

python -m benchmarks.shared_link_rank dense PART_BYTES PEERS
python -m benchmarks.shared_link_rank tables PART_BYTES HOST IN_FLIGHT
"""

from __future__ import annotations

import queue
import socket
import statistics
import sys
import threading
import time

MICRO_BATCHES = 2
NUM_BATCHES, FIRST = 40, 5
LISTEN = 9998
DENSE_SECONDS, TABLES_SECONDS = 0.012, 0.03  # of a batch, on either side


def receive(peer: socket.socket, num_bytes: int) -> None:
    while num_bytes:
        num_bytes -= len(peer.recv(min(num_bytes, 1 << 18))) or sys.exit("the other end left")


def rank_with_tables(num_bytes: int, host: str, in_flight: int) -> None:
    """Send rows, take gradients; what `threading` blocks on is the link."""
    for _ in range(400):
        try:
            peer = socket.create_connection((host, LISTEN))
            break
        except OSError:
            time.sleep(0.05)
    part = bytes(num_bytes)
    free = threading.Semaphore(in_flight)

    def send_rows() -> None:
        for _ in range(NUM_BATCHES):
            free.acquire()
            for _ in range(MICRO_BATCHES):
                peer.sendall(part)

    receive(peer, 1)
    sender = threading.Thread(target=send_rows)
    sender.start()
    for _ in range(NUM_BATCHES):
        receive(peer, MICRO_BATCHES * len(part))
        time.sleep(TABLES_SECONDS)
        free.release()
    sender.join()


def rank_with_dense_layers(num_bytes: int, num_peers: int) -> None:
    """Take rows of all, send gradients; prints seconds per batch, and when the first micro-batch
    was there, as a part of the time between batches."""
    listener = socket.create_server(("", LISTEN))
    peers = [listener.accept()[0] for _ in range(num_peers)]
    steps = [(batch, micro) for batch in range(NUM_BATCHES) for micro in range(MICRO_BATCHES)]
    came: dict[tuple[int, int], list[float]] = {step: [] for step in steps}
    complete = {step: threading.Event() for step in steps}
    out: list[queue.SimpleQueue[bytes]] = [queue.SimpleQueue() for _ in peers]

    def take_rows(peer: socket.socket) -> None:
        for step in steps:
            receive(peer, num_bytes)
            came[step].append(time.monotonic())
            if len(came[step]) == num_peers:
                complete[step].set()

    def send_gradients(index: int, peer: socket.socket) -> None:
        for _ in steps:
            peer.sendall(out[index].get())

    threads = [threading.Thread(target=take_rows, args=(peer,)) for peer in peers]
    threads += [threading.Thread(target=send_gradients, args=each) for each in enumerate(peers)]
    for peer in peers:
        peer.sendall(b"g")
    for thread in threads:
        thread.start()
    for step in steps:
        complete[step].wait()
        time.sleep(DENSE_SECONDS / MICRO_BATCHES)
        for each in out:
            each.put(bytes(num_bytes))
    for thread in threads:
        thread.join()
    last = [max(came[batch, MICRO_BATCHES - 1]) for batch in range(NUM_BATCHES)]
    shares = [
        (max(came[batch, 0]) - last[batch - 1]) / (last[batch] - last[batch - 1])
        for batch in range(FIRST, NUM_BATCHES)
    ]
    seconds = (last[-1] - last[FIRST - 1]) / (NUM_BATCHES - FIRST)
    print(seconds, statistics.mean(shares))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["dense", part, peers]:
            rank_with_dense_layers(int(part), int(peers))
        case ["tables", part, host, in_flight]:
            rank_with_tables(int(part), host, int(in_flight))
