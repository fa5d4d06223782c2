"""PaddlePaddle's parameter server, the code base of the paper: one server, one trainer.

    python paddle_peer.py WORKLOAD_JSON TEXT_FILE WARM_TEXT_FILE NUM_SAMPLES THREADS

Starts its server itself. Runs in an environment without heterps_hpc.
"""

import json
import os
import socket
import subprocess
import sys
import time


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def build(work: dict):
    """The network of the workload as a static program; returns its inputs and the loss."""
    import paddle

    slots = [
        paddle.static.data(name=f"s{i}", shape=[None, 1], dtype="int64", lod_level=1)
        for i in range(work["num_slots"])
    ]
    inputs = list(slots)
    dense = None
    if work["num_dense"]:
        dense = paddle.static.data(name="dense", shape=[None, work["num_dense"]], dtype="float32")
        inputs.append(dense)
    label = paddle.static.data(name="label", shape=[None, 1], dtype="int64")
    inputs.append(label)
    parts = []
    for slot in slots:
        rows = paddle.static.nn.sparse_embedding(
            input=slot,
            size=[work["num_slots"] * 1_000_000, work["dim"]],
            param_attr=paddle.ParamAttr(
                name="embedding", initializer=paddle.nn.initializer.Uniform(-0.01, 0.01)
            ),
        )
        parts.append(paddle.static.nn.sequence_lod.sequence_pool(input=rows, pool_type="sum"))
    values = paddle.concat(parts + ([dense] if dense is not None else []), axis=1)
    for width in work["hidden"]:
        values = paddle.static.nn.fc(values, size=width, activation="relu")
    logits = paddle.static.nn.fc(values, size=1)
    losses = paddle.nn.functional.binary_cross_entropy_with_logits(
        logits, paddle.cast(label, "float32"), reduction="mean"
    )
    return inputs, losses


def run_role(arguments: list) -> None:
    """Be the server or the trainer, as the environment says."""
    import paddle
    from paddle.distributed import fleet

    work = json.loads(arguments[0])
    threads = int(arguments[4])
    paddle.enable_static()
    fleet.init()
    inputs, loss = build(work)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    optimizer = fleet.distributed_optimizer(
        paddle.optimizer.Adam(learning_rate=work["dense_lr"]), strategy
    )
    optimizer.minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    fleet.init_worker()
    seconds = 0.0
    for text in (arguments[2], arguments[1]):
        dataset = paddle.distributed.InMemoryDataset()
        dataset.init(
            batch_size=work["batch_size"],
            thread_num=threads,
            pipe_command="cat",
            use_var=inputs,
        )
        dataset.set_filelist([text])
        dataset.load_into_memory()
        started = time.perf_counter()
        executor.train_from_dataset(paddle.static.default_main_program(), dataset)
        seconds = time.perf_counter() - started
        dataset.release_memory()
    print(json.dumps({"growing": int(arguments[3]) / seconds}), flush=True)
    fleet.stop_worker()


def main() -> None:
    """Start the server and the trainer, wait for the trainer, end both."""
    if "TRAINING_ROLE" in os.environ:
        run_role(sys.argv[1:])
        return
    port, trainer_port = free_port(), free_port()
    common = {
        **os.environ,
        "PADDLE_PSERVERS_IP_PORT_LIST": f"127.0.0.1:{port}",
        "PADDLE_TRAINERS_NUM": "1",
        "PADDLE_TRAINER_ENDPOINTS": f"127.0.0.1:{trainer_port}",
        "POD_IP": "127.0.0.1",
        "PADDLE_WITH_GLOO": "0",
    }
    command = [sys.executable, *sys.argv]
    server = subprocess.Popen(
        command, env={**common, "TRAINING_ROLE": "PSERVER", "PADDLE_PORT": str(port)}
    )
    try:
        subprocess.run(
            command,
            env={
                **common,
                "TRAINING_ROLE": "TRAINER",
                "PADDLE_TRAINER_ID": "0",
                "PADDLE_PORT": str(trainer_port),
            },
            check=True,
            timeout=300,
        )
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
