"""The phases of a rank's work, as they are timed, shown in heartbeats and drawn in the report."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """What a rank is doing; names that begin with `wait` are time in which it is idle."""

    START = "start"
    CHECK = "check"  # the preflight
    BUILD = "build"  # tables, modules, buffers
    RESTORE = "restore"
    READ = "read"
    PULL = "pull"
    SEND = "send"
    TRANSFER = "transfer"  # what MPI moves while a rank waits: it does so only when looked at
    WAIT_INPUTS = "wait inputs"
    ASSEMBLE = "assemble"
    FORWARD = "forward"
    BACKWARD = "backward"
    WAIT_GRADIENTS = "wait gradients"
    REDUCE = "reduce"
    CLIP = "clip"
    UPDATE = "update"
    PUSH = "push"
    EVALUATE = "evaluate"
    SAVE = "save"
    WAIT_FOR_SAVE = "wait for save"


OUTSIDE_TRAINING = (Phase.EVALUATE, Phase.SAVE, Phase.WAIT_FOR_SAVE)
