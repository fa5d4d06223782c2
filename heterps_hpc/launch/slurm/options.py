"""Options of one component for sbatch and for its part of srun; pure, and every value quoted."""

from __future__ import annotations

import re
import shlex

from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.layout import Component, Layout

_UNKNOWN_MINUTES = 60.0  # without a prediction
_START_MINUTES = 10.0  # starting, evaluating, saving
_MARGIN = 2.0  # times the predicted time

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./&|\[\]*()-]+")

# Who decides what: a site's further options may not undo the layout, nor ask for what Slurm
# cannot do for a job of several components.
_LAYOUT = (
    "-p --partition -N --nodes -n --ntasks --ntasks-per-node -c --cpus-per-task --mem "
    "--gpus-per-node -G --gpus --gpus-per-task --het-group"
)
_LAUNCHER = (
    "-J --job-name -o --output -e --error --open-mode -t --time --signal --requeue --no-requeue "
    "-D --chdir --export --wrap"
)
_OWN_KEY = "-A --account -q --qos -C --constraint --gres --reservation"
_REFUSED = {
    **dict.fromkeys(_LAYOUT.split(), "the layout decides it"),
    **dict.fromkeys(_LAUNCHER.split(), "the launcher sets it"),
    **dict.fromkeys(_OWN_KEY.split(), "it has a key of its own under `slurm:`"),
    **dict.fromkeys(["-a", "--array"], "Slurm has no arrays of jobs with several components"),
    **dict.fromkeys(["-W", "--wait"], "`heterps launch --wait` waits, and shows progress"),
    "--multi-prog": "one srun starts all components already",
}
_SINGLETON = "a job of several components with this dependency waits for itself forever"


def sbatch_word(word: str) -> str:
    """One word of a `#SBATCH` line. Slurm reads these itself: not shell, but " and \\ as in C."""
    if _PLAIN.fullmatch(word):
        return word
    name, equals, value = word.partition("=")
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}{equals}"{quoted}"'


def check_words(what: str, *words: str) -> None:
    """Refuse what would end a line of the script early."""
    for word in words:
        if not word.isprintable():
            raise UserError(f"{what}: {word!r} has control characters; use printable ones")


def further_options(pool: Pool) -> list[str]:
    """The site's own options of a component, after refusing those that cannot work."""
    where = f"pool {pool.name!r}: slurm.options"
    for option in pool.slurm.options:
        check_words(where, option)
        name, value = _split_option(option)
        if name in ("-d", "--dependency") and "singleton" in value:
            raise UserError(f"{where}: {option!r} is refused: {_SINGLETON}; use `afterany:JOBID`")
        if name in _REFUSED:
            raise UserError(f"{where}: {option!r} is refused: {_REFUSED[name]}; take it out")
        if not re.fullmatch(r"--[a-z][a-z0-9-]*", name):
            raise UserError(
                f"{where}: {option!r} is not a long option; write each with its value as one "
                "entry, for example '--nice=100'"
            )
    return list(pool.slurm.options)


def _split_option(option: str) -> tuple[str, str]:
    """Name and value of an option, short (`-d x`, `-dx`) or long (`--dependency=x`)."""
    if option.startswith("--"):
        name, _, value = option.partition("=")
        return name, value
    return option[:2], option[2:]


def gres_of(pool: Pool, component: Component) -> list[str]:
    """GPUs: by the site's gres if it names one, else by node; one GPU per rank."""
    gres = pool.slurm.gres
    if gres is not None:
        entries = [_counted(entry, component.ranks_per_node) for entry in gres.split(",")]
        return [f"--gres={','.join(entries)}"]
    if component.device != "cpu":
        return [f"--gpus-per-node={component.ranks_per_node}"]
    return []


def _counted(entry: str, num_gpus: int) -> str:
    """`gpu:a100` with the number of GPUs; other entries, and counts that are there, as they are."""
    is_gpu = entry.split(":")[0] == "gpu"
    return entry if not is_gpu or entry.rsplit(":", 1)[-1].isdigit() else f"{entry}:{num_gpus}"


def memory_mb(pool: Pool, component: Component) -> int:
    """Memory of one node of the component: the share of the ranks that it holds."""
    return pool.memory_per_rank_bytes * component.ranks_per_node // 2**20


def component_options(component: Component, cluster: Cluster, time_limit: str) -> list[str]:
    """All `#SBATCH` options of one component; nothing is left to be inherited."""
    pool = cluster.pool(component.pool)
    if component.partition is None:
        raise UserError(
            f"pool {component.pool!r} names no Slurm partition; add `partition:` to it in the "
            "cluster file and plan again, or launch locally"
        )
    slurm = pool.slurm
    named = {
        "--account": slurm.account,
        "--qos": slurm.qos,
        "--constraint": slurm.constraint,
        "--reservation": slurm.reservation,
    }
    chosen = [f"{name}={value}" for name, value in named.items() if value is not None]
    words = [
        f"--partition={component.partition}",
        f"--nodes={component.num_nodes}",
        f"--ntasks={component.num_ranks}",
        f"--ntasks-per-node={component.ranks_per_node}",
        f"--cpus-per-task={component.cores_per_rank}",
        f"--mem={memory_mb(pool, component)}M",
        f"--time={time_limit}",
        *gres_of(pool, component),
        *chosen,
    ]
    check_words(f"pool {component.pool!r}", *words)
    return [*words, *further_options(pool)]


def srun_options(component: Component, cluster: Cluster, bind: str) -> list[str]:
    """Options of one component's part of srun; explicit, because its variables leak across."""
    pool = cluster.pool(component.pool)
    return [
        f"--nodes={component.num_nodes}",
        f"--ntasks={component.num_ranks}",
        f"--ntasks-per-node={component.ranks_per_node}",
        f"--cpus-per-task={component.cores_per_rank}",
        f"--mem={memory_mb(pool, component)}M",
        "--distribution=block",
        *(["--cpu-bind=cores"] if bind == "core" else []),
        *cluster.site.srun_options,
    ]


def limit_seconds(job: Job, cluster: Cluster, layout: Layout | None = None) -> int:
    """Time limit of the job in seconds: what the user wants, within what the site allows.

    If the job names none: the predicted time with a wide margin, since a job that reaches its limit
    is stopped, and one that asks for too much waits longer.
    """
    minutes = job.launch.time_limit_minutes
    if minutes is None:
        minutes = _UNKNOWN_MINUTES
        if layout is not None and layout.plan is not None:
            minutes = _START_MINUTES + _MARGIN * layout.plan.estimate.hours * 60
    if cluster.site.time_limit_minutes is not None:
        minutes = min(minutes, cluster.site.time_limit_minutes)
    return max(60, round(minutes * 60))


def slurm_time(seconds: int) -> str:
    """Seconds as days-hours:minutes:seconds."""
    days, rest = divmod(seconds, 86400)
    return f"{days}-{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"


def shell_words(words: list[str]) -> str:
    """Words for the body of the script."""
    return " ".join(shlex.quote(word) for word in words)
